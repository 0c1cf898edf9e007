"""Efficient-CapsNet on digits: the published network, chosen on digits that are held out, and one row runs."""

import json

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.experiments import find_experiment
from torchcaps.experiments.harness import TEST_ERROR
from torchcaps.runs import new_model


def test_rows_are_what_they_say(tmp_path):
    data = load_data(write_digits(tmp_path / "digits.npz"))
    rows = {row.name: row for row in find_experiment("mazzia2021").choose_rows("full")}
    models = {name: new_model(row.config, data) for name, row in rows.items()}
    for row in rows.values():
        assert row.config.validation == 0.1  # so that the epoch is not chosen on the test
        assert row.config.training == rows["CNN, small"].config.training
    assert {name: row.published for name, row in rows.items() if row.published} == {
        "Efficient-CapsNet": {TEST_ERROR: 0.16}
    }
    routings = {name: type(model.class_capsules.routing).__name__ for name, model in models.items() if model.is_routed}
    assert routings["Efficient-CapsNet"] == routings["without bias of couplings"] == "SelfAttentionRouting"
    assert routings["uniform couplings"] == "UniformRouting"
    assert routings["dynamic, r = 3"] == "DynamicRouting"
    assert models["without bias of couplings"].class_capsules.routing.bias is None
    assert models["without reconstruction"].decoder is None


def test_a_row_runs(tmp_path):
    digits = write_digits(tmp_path / "digits.npz")
    command = ["reproduce", "mazzia2021", "--quick", "--data", str(digits), "--out", str(tmp_path / "out")]
    assert main([*command, "--only", "CNN, small"]) == 0
    lines = json.loads((tmp_path / "out" / "results.json").read_text())["lines"]
    assert [line["name"] for line in lines if line["values"]] == ["CNN, small"]
