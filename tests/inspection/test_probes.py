"""Linear maps tell what features hold, and nothing that they do not hold."""

import numpy as np
import pytest
import torch

from torchcaps.inspection import PROPERTIES, image_properties, linear_r_squared, probe_poses, read_features
from torchcaps.inspection.probes import PoseProbes, fit_map, principal_axes
from torchcaps.models import create_model

RANDOM = np.random.default_rng(0)
ALWAYS = np.zeros(1)


def test_linear_maps_find_what_is_linear():
    features = RANDOM.normal(size=(300, 6))
    target = features @ RANDOM.normal(size=(6, 2)) + 3
    assert linear_r_squared(features, target, least_deviations=np.zeros(2)) == pytest.approx([1, 1], abs=1e-6)
    noisy = target[:, :1] + target[:, :1].std() * RANDOM.normal(size=(300, 1))
    assert linear_r_squared(features, noisy, least_deviations=ALWAYS)[0] == pytest.approx(0.5, abs=0.1)


def test_chance_tells_nothing():
    """Many features fit any target; what counts is what they say of rows they were not fitted to."""
    features, target = RANDOM.normal(size=(60, 40)), RANDOM.normal(size=(60, 1))
    assert linear_r_squared(features, target, least_deviations=ALWAYS)[0] < 0
    square = RANDOM.normal(size=(500, 1))
    assert linear_r_squared(square, square**2, least_deviations=ALWAYS)[0] < 0.1


def test_what_hardly_varies_is_not_told():
    features = RANDOM.normal(size=(50, 8))
    targets = np.ones((50, len(PROPERTIES))) + 1e-3 * RANDOM.normal(size=(50, len(PROPERTIES)))
    assert np.isnan(linear_r_squared(features, targets)).all()
    assert np.isnan(linear_r_squared(features[:3], targets[:3])).all()


def test_features_that_hang_on_each_other():
    features = RANDOM.normal(size=(100, 3))
    doubled = np.hstack([features, 2 * features, np.ones((100, 1))])
    assert linear_r_squared(doubled, features[:, :1], least_deviations=ALWAYS)[0] == pytest.approx(1, abs=1e-4)


def test_principal_directions_are_read_alone():
    features = RANDOM.normal(size=(400, 3)) * [10, 5, 0.1]
    axes, sizes = principal_axes(features - features.mean(0), 2)
    assert np.allclose(np.abs(axes[:, :2]), np.eye(2), atol=0.15)
    assert sizes == pytest.approx([10, 5], rel=0.1)
    told = [
        linear_r_squared(features, features[:, [column]], num_entries=2, least_deviations=ALWAYS)[0]
        for column in (0, 2)
    ]
    assert told[0] > 0.99
    assert told[1] < 0.1
    assert fit_map(features, features[:, :1], 1)(features).shape == (400, 1)


def test_features_are_poses_or_what_the_last_layer_reads():
    torch.manual_seed(0)
    images, labels = RANDOM.integers(0, 255, (5, 20, 20)).astype(np.uint8), np.array([0, 1, 2, 1, 0])
    capsules = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, class_size=4).eval()
    output = capsules(capsules.preprocessing(images))
    expected = output.poses.detach()[torch.arange(5), torch.from_numpy(labels)]
    assert np.allclose(read_features(capsules, images, labels), expected, atol=1e-6)
    cnn = create_model("cnn-small", image_shape=(1, 20, 20), num_classes=3).eval()
    features = torch.from_numpy(read_features(cnn, images, labels)).float()
    last = cnn.network[-1]
    assert torch.allclose(last(features), cnn(cnn.preprocessing(images)).scores, atol=1e-5)


def test_probes_of_a_network_that_reads_the_answer(monkeypatch):
    """With features that are the properties themselves everything that varies is told, in every class."""
    from support.drawings import stripe

    images = np.stack(
        [stripe(slant=s, thickness=t, size=24, height=14) for s, t in RANDOM.uniform((-0.5, 2), (0.5, 4), (60, 2))]
    )
    raw, labels = (255 * images).round().astype(np.uint8), np.arange(60) % 2
    model = create_model("cnn-small", image_shape=(1, 24, 24), num_classes=2)
    known = image_properties(raw / 255.0)
    monkeypatch.setattr("torchcaps.inspection.probes.read_features", lambda *_: known[:, :3])
    probes = probe_poses(model, raw, labels)
    assert isinstance(probes, PoseProbes)
    assert probes.r_squared.shape == (2, len(PROPERTIES))
    assert probes.mean("slant", "thickness") == pytest.approx(1, abs=1e-3)
    assert np.isnan(probes.r_squared[:, PROPERTIES.index("holes")]).all()
    assert probes.num_entries == 3
