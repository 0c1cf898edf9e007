"""The ablation on digits: every row is what it says it is, and one runs."""

import json
from collections import Counter

import pytest

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.experiments import find_experiment, mnist_ablation
from torchcaps.experiments.digits import ROUTINGS
from torchcaps.experiments.harness import TEST_ERROR
from torchcaps.routing import routing_names
from torchcaps.runs import new_model


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def test_every_model_can_be_built(digits):
    data = load_data(digits)
    for row in find_experiment("mnist-ablation").choose_rows("full"):
        assert new_model(row.config, data).num_classes == 10
        assert row.config.validation == 0


def test_routings_have_equal_numbers_of_updates():
    assert {kind for kind, _ in ROUTINGS.values()} <= set(routing_names())
    for kind, options in ROUTINGS.values():
        if kind != "uniform":
            assert options["num_iterations"] - (kind != "kmeans") == 2


def test_published_figures_and_budgets():
    rows = find_experiment("mnist-ablation").choose_rows("full")
    published = {row.name: row.published[TEST_ERROR] for row in rows if row.published}
    assert published == {
        "CNN, 4.2 M": 0.39,
        "r = 1, without reconstruction": 0.34,
        "r = 1, with reconstruction": 0.29,
        "r = 3, without reconstruction": 0.35,
        "r = 3, with reconstruction": 0.25,
    }
    sizes = Counter(row.config.num_train for row in rows if row.group == "training digits")
    assert sizes == dict.fromkeys((100, 1000, 10_000, None), 4)
    shown = {row.config.num_train * row.config.training.epochs for row in rows if row.config.num_train}
    assert min(shown) >= 60_000  # even a hundred digits are seen as often as those of a whole epoch of MNIST
    assert len({row.config.training.epochs for row in rows if not row.config.num_train}) == 1


def test_rows_of_two_groups_are_one_run():
    rows = find_experiment("mnist-ablation").choose_rows("full")
    configs = {row.name: row.config for row in rows}
    assert configs["r = 3, without reconstruction"] == configs["dynamic, r = 3"] == configs["all digits: capsules"]
    assert configs["r = 1, without reconstruction"] == configs["uniform"] == configs["all digits: capsules, uniform"]
    assert configs["CNN, small"] == configs["all digits: CNN, small"]
    assert configs["no routing"] == configs["all digits: no routing"]


def test_a_row_in_full(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(mnist_ablation.SIZES, "quick", (20,))
    monkeypatch.setitem(mnist_ablation.LEAST_DIGITS, "quick", 40)
    command = ["reproduce", "mnist-ablation", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "20 digits: CNN", "K-Means, r = 2"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    routed, few = kept["runs"]
    assert routed["config"]["model_options"]["routing"] == "kmeans"
    assert set(few["measures"]) == {TEST_ERROR, mnist_ablation.SECONDS}
    assert (few["config"]["num_train"], few["config"]["training"]["epochs"]) == (20, 2)
