"""Photographs: every head has the same stem and steps; networks are measured under corruption; many classes."""

import json

import numpy as np
import pytest

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data.made_pairs import SHAPES
from torchcaps.experiments import find_experiment
from torchcaps.experiments.natural import CHOICE, HEADS
from torchcaps.models import create_model


def test_heads_differ_in_nothing_but_the_head():
    rows = {row.name: row for row in find_experiment("natural").choose_rows("full")}
    for name in ("CIFAR-10", "Fashion-MNIST"):
        of_set = [rows[f"{name}: {head}"].config for head in HEADS]
        assert len({json.dumps(config.training.to_dict()) for config in of_set}) == 1
        assert {config.model_options["backbone"] for config in of_set} == {"resnet-20"}
        for config in of_set:
            model = create_model(config.model, image_shape=(3, 32, 32), num_classes=10, **config.model_options)
            assert model.features[0].weight.shape == (16, 3, 3, 3)
    assert {row.config.data for row in rows.values()} == {"cifar10", "fashion-mnist"}
    assert all(row.config.validation == 0.05 for row in rows.values() if row.group != CHOICE)


def test_corrupted_pictures_are_asked_of_the_same_runs():
    natural = {row.name: row.config for row in find_experiment("natural").choose_rows("full")}
    for row in find_experiment("robustness").choose_rows("full"):
        assert row.config == natural[row.name]


def test_as_many_pictures_for_every_number_of_classes():
    rows = find_experiment("many-classes").choose_rows("full")
    assert {row.config.data for row in rows} == {f"pairs-{num}" for num in SHAPES}
    assert {row.config.num_train for row in rows} == {12_000}


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("robustness", "CIFAR-10: pooling"),
        pytest.param("natural", "CIFAR-10: EM", marks=pytest.mark.slow),
        pytest.param("many-classes", "attention", marks=pytest.mark.slow),
    ],
)
def test_a_row_runs(name, only, tmp_path):
    digits = write_digits(tmp_path / "digits.npz")
    command = ["reproduce", name, "--quick", "--data", str(digits), "--out", str(tmp_path / "out"), "--only", only]
    assert main(command) == 0
    lines = [line for line in json.loads((tmp_path / "out" / "results.json").read_text())["lines"] if line["values"]]
    assert len(lines) == (16 if name == "robustness" else 2)
    assert all(np.isfinite(line["values"]).all() for line in lines)
