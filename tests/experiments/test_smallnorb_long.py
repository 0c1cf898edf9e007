"""Every row of the long runs is what it says it is, and one of them runs."""

import json

import pytest

from support.norb_files import write_pairs
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.experiments import find_experiment
from torchcaps.experiments.harness import TEST_ERROR, over_crops
from torchcaps.experiments.smallnorb_long import CHOSEN, NUM_TOYS
from torchcaps.runs import new_model

ROWS = find_experiment("smallnorb-long").choose_rows("full")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder)
    return folder


def rows_of(group):
    return [row for row in ROWS if row.group.startswith(group)]


def test_what_is_chosen_is_the_default_of_the_network(pairs):
    """So that whoever trains the network without options trains what the tables tell of."""
    row = rows_of("trained for long")[0]
    model = new_model(row.config, load_data(pairs))
    plain = type(model)(image_shape=model.image_shape, num_classes=5)
    assert repr(model) == repr(plain)
    assert row.config.model_options["routing_options"].items() >= CHOSEN.items()


def test_rows_of_a_table_differ_in_one_thing():
    base, *others = rows_of("table 1")
    for row in others:
        changes = {
            key for key, value in row.config.model_options.items() if base.config.model_options.get(key) != value
        }
        changes |= {"loss"} if row.config.training.loss != base.config.training.loss else set()
        assert len(changes) == 1, row.name
        assert row.config.training.epochs == base.config.training.epochs
    assert {row.name: row.published[TEST_ERROR] for row in others if row.name.startswith("t =")} == {
        "t = 1": 9.7,
        "t = 2": 2.2,
        "t = 5": 3.9,
    }


def test_long_rows_are_trained_equally():
    rows = {row.name: row for row in rows_of("trained for long")}
    large = rows.pop(next(name for name in rows if name.startswith("large")))
    assert len({row.config.training.epochs for row in rows.values()}) == 1
    assert len({row.config.training.augmentation for row in (*rows.values(), large)}) == 1
    assert large.published == {TEST_ERROR: 1.8, over_crops(9): 1.4}
    for row in (*rows.values(), large):  # the figures are those of the last epoch: nothing is chosen
        assert (row.config.validation_instances, row.config.validation) == (0, 0.0)


def test_the_fewer_toys_the_more_epochs():
    for row in rows_of("few toys"):
        number, toys = row.name.split(" of each kind: ")
        assert row.config.validation_instances == NUM_TOYS - int(number), toys
        assert row.config.training.epochs * int(number) == rows_of("table 1")[0].config.training.epochs * NUM_TOYS


def test_one_row_runs(pairs, tmp_path):
    command = ["reproduce", "smallnorb-long", "--quick", "--data", str(pairs), "--out", str(tmp_path)]
    assert main([*command, "--only", "4 of each kind: capsules"]) == 0
    (found,) = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert set(found["measures"]) == {TEST_ERROR}
