"""Poses are followed and asked for views; a row of each kind runs."""

import json

import numpy as np
import pytest

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data import DataSet, ImageSet, load_data
from torchcaps.experiments import equivariance, find_experiment, toy_views
from torchcaps.inspection import views
from torchcaps.runs import new_model


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def test_every_model_of_digits_can_be_built(digits):
    data = load_data(digits)
    rows = [row for row in find_experiment("equivariance").choose_rows("full") if row.group == equivariance.DIGITS]
    assert len(rows) == 10
    for row in rows:
        model = new_model(row.config, data)
        assert model.num_classes == 10
        assert toy_views.entries_of(model) == (None if model.is_routed else 16)


def test_a_row_of_digits(digits, tmp_path):
    command = ["reproduce", "equivariance", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "uniform", "CNN, small"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    assert len(kept["runs"]) == 2
    for run in kept["runs"]:
        found = run["measures"]
        assert 100 / 16 <= found[equivariance.EVEN] <= found[equivariance.LINE] + 1e-6 <= 100 + 1e-5
        assert 0 <= found[equivariance.ANGLE] <= 180
    followed = json.loads((tmp_path / "uniform" / "seed-0" / "followed.json").read_text())["followed"]
    assert set(followed) == {"right", "down", "turned", "scaled", "sheared"}


def toys(num_toys: int, seed: int) -> ImageSet:
    random = np.random.default_rng(seed)
    return ImageSet(
        images=random.integers(0, 255, (num_toys, 48, 48, 2)).astype(np.uint8),
        labels=np.arange(num_toys) % 2,
        class_names=("car", "plane"),
        factors={
            "azimuth": 2 * (np.arange(num_toys) // 2 % 18),
            "elevation": random.integers(0, 9, num_toys),
            "lighting": random.integers(0, 6, num_toys),
            "instance": np.arange(num_toys) // 36 % 5,
        },
    )


def test_views_are_told_of_sides_that_were_not_fitted(tmp_path, monkeypatch):
    """With features that are the views everything is told, from known sides and from new ones."""
    data = DataSet(name="toys", train=toys(360, 0), test=toys(1080, 1), origin="made", terms="none")
    monkeypatch.setattr("torchcaps.experiments.viewpoints.load_data", lambda *_, **__: data)
    (row,) = find_experiment("equivariance").choose_rows("quick", "digits,toys", ["toys: CNN, small"])
    toy_views.train_views(row.config, tmp_path, None)
    found = toy_views.tell_views(tmp_path)
    assert len(found) == 13
    assert 60 < found["azimuth, new sides, degrees off"] < 120  # noise shows no side
    parts = toy_views.view_parts("azimuth", row.config).tests.values()

    def known(model, images, labels):
        (part,) = (part for part in parts if np.array_equal(part.images, images))
        return views.view_factors(part)

    monkeypatch.setattr(toy_views, "read_features", known)
    monkeypatch.setattr(toy_views, "entries_of", lambda _: None)
    found = toy_views.tell_views(tmp_path)
    assert [value for name, value in found.items() if name.endswith("told")] == pytest.approx([100] * 9, abs=0.1)
    assert [value for name, value in found.items() if name.endswith("off")] == pytest.approx([0] * 3, abs=0.1)
