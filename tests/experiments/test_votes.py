"""What routing does to votes, measured."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from support.digit_files import write_digits
from support.norb_files import write_pairs
from support.routed import routed_image
from torchcaps.cli import main
from torchcaps.experiments import find_experiment, votes
from torchcaps.experiments.harness import run_rows
from torchcaps.inspection import remaining_descent
from torchcaps.models import create_model
from torchcaps.nn import KMeansRouting


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


@pytest.fixture
def model():
    return create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, reconstruct=False).eval()


def test_uniform_couplings_are_not_polarised(model):
    image = torch.rand(1, 20, 20)
    first = routed_image(model, image)
    assert votes.polarisation(first)[0] == pytest.approx(1 / 3)
    hard = routed_image(model, image, KMeansRouting(hard=True, num_iterations=2))
    assert votes.polarisation(hard)[-1] == pytest.approx(1)


def test_disagreement_counts_other_answers(model):
    routed = [routed_image(model, torch.rand(1, 20, 20)) for _ in range(4)]
    assert votes.disagreement(routed, routed) == 0
    turned = [one._replace(activations=one.activations[:, ::-1]) for one in routed]
    changed = [one.strongest[0] != 2 - one.strongest[0] for one in routed]
    assert votes.disagreement(routed, turned) == np.mean(changed)


def test_nearness_of_votes_that_all_agree(model):
    routed = routed_image(model, torch.rand(1, 20, 20))
    couplings = np.stack([np.full_like(routed.couplings[0], 1 / 3)] * 2)
    same = routed._replace(couplings=couplings, activations=routed.activations[:2])
    assert votes.nearness([same]) == pytest.approx({votes.CLOSER("winner"): 100, votes.CLOSER(votes.OTHERS): 100})


def test_more_iterations_go_on_from_the_same_ones(model):
    routing = model.class_capsules.routing
    image = torch.rand(1, 20, 20)
    longer = routed_image(model, image, votes.with_iterations(routing, votes.NUM_ITERATIONS))
    assert len(longer.objectives) == votes.NUM_ITERATIONS
    own = routed_image(model, image)
    np.testing.assert_allclose(longer.couplings[: len(own.couplings)], own.couplings, rtol=1e-5)
    assert (np.diff(longer.objectives) <= 1e-6).all()
    assert remaining_descent([3.0, 2.0, 1.0]).tolist() == [1.0, 0.5, 0.0]
    assert remaining_descent([3.0, 3.0]) is None


def test_answers_are_compared_where_they_mean_the_same(model):
    assert set(votes.other_routings(model.class_capsules.routing)) == {"K-Means", "entropy", "uniform"}
    routing = {"num_iterations": 2}
    matrix = create_model(
        "matrix-capsnet-small", image_shape=(1, 32, 32), num_classes=3, routing_options=routing
    ).eval()
    others = votes.other_routings(matrix.class_capsules.routing)
    assert set(others) == {"uniform"}
    routed = routed_image(matrix, torch.rand(1, 32, 32), others["uniform"])
    np.testing.assert_allclose(routed.couplings, 1 / 3, rtol=1e-6)


def test_quick(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(votes.NUM_IMAGES, "quick", 3)
    command = ["reproduce", "votes", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "K-Means", "digits: uniform"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    kmeans, uniform = (run["measures"] for run in kept["runs"])
    assert "answers that uniform routing changes, %" in kmeans
    assert "answers that K-Means routing changes, %" not in kmeans
    assert votes.SETTLED in kmeans
    assert uniform[votes.LARGEST] == pytest.approx(10)
    assert votes.SETTLED not in uniform
    for name in ("distances-full.png", "distances-zoomed.png"):
        with Image.open(tmp_path / "digits-k-means-r-2" / "seed-0" / name) as picture:
            assert min(picture.size) > 400
    assert (tmp_path / "digits-iterations-seed-0.png").exists()


@pytest.mark.slow
def test_toys(digits, tmp_path, monkeypatch):
    (tmp_path / "pairs").mkdir()
    write_pairs(tmp_path / "pairs")
    monkeypatch.setitem(votes.NUM_IMAGES, "quick", 2)
    rows = find_experiment("votes").choose_rows("quick", f"{digits}, {tmp_path / 'pairs'}", ["toys: EM, t = 2"])
    (done,) = run_rows(rows, tmp_path / "out")
    assert votes.LARGEST_LONG in done.measures
    assert done.measures[votes.LARGEST] >= 20
    assert "answers that uniform routing changes, %" in done.measures
