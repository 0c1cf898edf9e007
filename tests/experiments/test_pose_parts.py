"""The parts of poses: every row is what it says, bounds are what they are called, and a row of each kind runs."""

import json

import numpy as np
import pytest
import torch

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.experiments import find_experiment
from torchcaps.experiments.pose_networks import CodeNetwork, PoseNetwork
from torchcaps.experiments.pose_parts import ERROR, STRAIGHT, WRONG
from torchcaps.inspection import class_means, class_principal_pictures, picture_errors
from torchcaps.models import create_model

SHAPE = {"image_shape": (1, 28, 28), "num_classes": 10}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def test_every_network_can_be_built():
    rows = [row for row in find_experiment("pose-parts").choose_rows("full") if "bound" not in row.config.model_options]
    for row in rows:
        options = {name: value for name, value in row.config.model_options.items() if name != "first_weight"}
        model = (CodeNetwork if "code" in options else PoseNetwork)(**SHAPE, **options)
        assert model(torch.rand(2, 1, 28, 28), torch.tensor([1, 2])).reconstruction.shape == (2, 1, 28, 28)
        assert row.config.training.reconstruction_weight is not None
        assert (row.config.num_train, row.config.num_test) == (12_000, 0)  # the test digits stay unseen


def test_the_choice_is_capsnet_small():
    torch.manual_seed(0)
    chosen, now = PoseNetwork(**SHAPE), create_model("capsnet-small", **SHAPE)
    assert {name: tuple(value.shape) for name, value in chosen.state_dict().items()} == {
        name: tuple(value.shape) for name, value in now.state_dict().items()
    }
    chosen.load_state_dict(now.state_dict())
    images = torch.rand(2, 1, 28, 28)
    expected, found = now.eval()(images), chosen.eval()(images)
    assert (expected.ranking, found.ranking) == (None, None)
    assert all(torch.equal(*pair) for pair in zip(expected[:3], found[:3], strict=True))


def test_a_wider_inner_space_is_a_product_of_matrices():
    """Votes of children that were moved by their own matrices first: (u A_i) W_j."""
    torch.manual_seed(0)
    model = PoseNetwork(**SHAPE, inner_size=12, routing="uniform").eval()
    images = torch.rand(1, 1, 28, 28)
    children = model.primary(model.features(images)).flatten().poses
    votes = torch.einsum("bik,ikr,jrd->bijd", children, model.inner, model.class_capsules.weight)
    sums = votes.sum(1) / 10
    norm = sums.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(model(images).poses, sums * norm / (1 + norm**2), rtol=1e-4, atol=1e-6)


def test_the_winner_is_drawn_in_training():
    torch.manual_seed(0)
    images, classes = torch.rand(2, 1, 28, 28), torch.tensor([3, 4])
    for draws_winner in (False, True):
        model = PoseNetwork(**SHAPE, draws_winner=draws_winner).eval()
        same = torch.equal(model(images, classes).reconstruction, model(images).reconstruction)
        assert same == draws_winner


def test_bounds():
    """With as many directions as digits vary in, digits are drawn whole; means err by the variance of a class."""
    random = np.random.default_rng(0)
    labels = np.arange(40) % 2
    flat = (
        0.5
        + 0.1 * np.where(labels[:, None], 1, -1)
        + random.uniform(-0.1, 0.1, (40, 2)) @ random.normal(size=(2, 9)) / 3
    )
    pictures = flat.reshape(40, 3, 3)
    mean_drawn = class_means(pictures, labels, pictures, labels)
    assert np.allclose(mean_drawn[labels == 1], pictures[labels == 1].mean(0))
    variance = sum(pictures[labels == index].var(0).sum() for index in (0, 1)) / 2
    assert picture_errors(mean_drawn, pictures).mean() == pytest.approx(variance)
    whole = class_principal_pictures(pictures, labels, pictures, labels, num_directions=2)
    assert picture_errors(whole, pictures).max() < 1e-12
    part = class_principal_pictures(pictures, labels, pictures, labels, num_directions=1)
    assert 1e-6 < picture_errors(part, pictures).mean() < variance
    with pytest.raises(ValueError, match="no fitted picture has class 1"):
        class_means(pictures[labels == 0], labels[labels == 0], pictures, labels)


def test_rows_run(digits, tmp_path):
    command = ["reproduce", "pose-parts", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    only = ["class means", "autoencoder", "CapsNet-Small", "from 0.1 to 0.02"]
    assert main([*command, "--only", *only]) == 0
    kept = {run["row"]: run["measures"] for run in json.loads((tmp_path / "results.json").read_text())["runs"]}
    assert len(kept) == 4
    assert set(kept["class means"]) == {ERROR}
    assert set(kept["autoencoder, code of 16, class given"]) == {ERROR}
    for name in ("CapsNet-Small", "from 0.1 to 0.02"):
        assert set(kept[name]) == {ERROR, WRONG, STRAIGHT}
        assert 0 < kept[name][STRAIGHT] <= 1 + 1e-5
    assert kept["CapsNet-Small"][ERROR] != kept["from 0.1 to 0.02"][ERROR]
