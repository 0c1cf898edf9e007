"""Noise on capsules: whole capsules, the right amounts, in training only."""

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.models import create_model
from torchcaps.nn import CapsuleNoise


@pytest.fixture
def capsules():
    torch.manual_seed(0)
    return Capsules(5 * torch.randn(8, 7, 7, 16, 16), torch.full((8, 7, 7, 16), 0.5))


@pytest.mark.parametrize("training", [True, False])
def test_a_tensor_is_refused(training):
    with pytest.raises(TypeError, match=r"takes Capsules\(poses, activations\), got Tensor"):
        CapsuleNoise(dropout=0.5).train(training)(torch.randn(2, 6, 8))


def test_whole_capsules_drop_out_and_the_mass_stays(capsules):
    poses, activations = CapsuleNoise(dropout=0.25)(capsules)
    assert poses is capsules.poses
    is_out = activations == 0
    assert float(is_out.float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.allclose(activations[~is_out], torch.tensor(0.5 / 0.75))
    assert float(activations.mean()) == pytest.approx(0.5, abs=0.01)


def test_poses_drop_out_where_nobody_looks_at_activations(capsules):
    poses, activations = CapsuleNoise(dropout=0.25, drop_poses=True)(capsules)
    is_out = activations == 0
    assert not poses[is_out].any()
    torch.testing.assert_close(poses[~is_out], capsules.poses[~is_out] / 0.75)


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "em"])
def test_dropout_reaches_every_routing(routing):
    options = {"routing": routing, "capsule_dropout": 0.5}
    model = create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=3, **options)
    images = torch.rand(2, 2, 20, 20)
    with torch.no_grad():
        assert not torch.equal(model(images).scores, model(images).scores)


def test_pose_noise_is_measured_by_the_poses(capsules):
    poses, activations = CapsuleNoise(pose_noise=0.1)(capsules)
    assert torch.equal(activations, capsules.activations)
    noise = poses - capsules.poses
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.01


def test_nothing_happens_outside_training(capsules):
    assert CapsuleNoise(dropout=0.5, pose_noise=0.5).eval()(capsules) is capsules
    assert CapsuleNoise()(capsules) is capsules


@pytest.mark.parametrize("options", [{"dropout": 1.0}, {"dropout": -0.1}, {"pose_noise": float("nan")}])
def test_amounts_are_checked(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        CapsuleNoise(**options)


def test_matrix_capsules_are_noisy_in_training_alone():
    torch.manual_seed(0)
    options = {"capsule_dropout": 0.2, "pose_noise": 0.1}
    model = create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=3, **options)
    images = torch.rand(2, 2, 20, 20)
    with torch.no_grad():
        assert not torch.equal(model(images).scores, model(images).scores)
        model.eval()
        assert torch.equal(model(images).scores, model(images).scores)
    assert model.config()["arguments"]["pose_noise"] == 0.1
