"""Every row of the smallNORB experiments is what it says it is, and runs."""

import json

import pytest
import torch

from support.norb_files import write_pairs
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.experiments import find_experiment
from torchcaps.experiments.harness import TEST_ERROR, over_crops
from torchcaps.runs import new_model
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import fresh_statistics

ROWS = [
    (name, scale, row)
    for name in ("hinton2018", "smallnorb-choices", "soft-start", "smallnorb-folds")
    for scale in ("quick", "full")
    for row in find_experiment(name).choose_rows(scale)
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder)
    return folder


def test_budgets_are_equal():
    for name in ("hinton2018", "smallnorb-choices"):
        for scale in ("quick", "full"):
            rows = [
                row for row in find_experiment(name).choose_rows(scale) if row.group not in ("networks", "baselines")
            ]
            epochs = {row.name: row.config.training.epochs for row in rows}
            usual = next(iter(epochs.values()))
            longer = {row for row, count in epochs.items() if count != usual}
            assert longer == {row for row in epochs if row.endswith("three times as long")}
            assert {epochs[row] for row in longer} <= {3 * usual}
            if name == "hinton2018":
                assert len({row.config.training.batch_size for row in rows}) == 1
            assert len({json.dumps(row.config.__dict__, default=str) for row in rows}) == len(rows)


def test_choices_never_touch_the_test_images():
    for name, _, row in ROWS:
        if name != "hinton2018":
            assert (row.config.validation_instances, row.config.num_test) == (1, 0)
            assert row.config.validation_in_turn == (name != "smallnorb-choices")
        else:  # and the final figures are not chosen at all
            assert (row.config.validation_instances, row.config.validation) == (0, 0.0)


def test_published_figures():
    rows = {row.name: row.published for row in find_experiment("hinton2018").choose_rows("full")}
    errors = {name: published.get(TEST_ERROR) for name, published in rows.items()}
    assert [errors[name] for name in ("t = 1", "t = 3", "t = 5")] == [9.7, 1.8, 3.9]
    assert errors["CNN, 4.2 M"] == 5.2
    assert rows["MatrixCapsNet, 310 K"] == {TEST_ERROR: 1.8, over_crops(9): 1.4}
    assert errors["MatrixCapsNet small, 68 K"] == 2.2


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{name}: {row.name}") for name, scale, row in ROWS if scale == "full"]
)
def test_every_row_learns_something(row, pairs):
    """The loss of one batch falls within a few steps."""
    data = load_data(pairs)
    torch.manual_seed(0)
    model = new_model(row.config, data)
    assert model.image_shape == (2, 32, 32)
    objective = make_objective(model, row.config.training)
    images, targets = model.preprocessing(data.train.images[:60:6]), torch.from_numpy(data.train.labels[:60:6])
    with fresh_statistics(model), torch.no_grad():
        model(images)
    optimizer = torch.optim.Adam(model.eval().parameters(), lr=row.config.training.learning_rate)
    losses = []
    for _ in range(4):
        loss = objective(model(images), images, targets, 0.5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_quick_on_pairs_of_pictures(pairs, tmp_path):
    command = ["reproduce", "hinton2018", "--quick", "--data", str(pairs), "--out", str(tmp_path)]
    assert main([*command, "--only", "small, 68 K", "t = 3"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    small, iterations = kept["runs"]
    assert set(small["measures"]) == {TEST_ERROR, over_crops(9)}
    assert set(iterations["measures"]) == {TEST_ERROR}
    assert iterations["config"]["model_options"]["routing_options"]["num_iterations"] == 3
    assert small["result"]["num_test"] == 40
    assert "| MatrixCapsNet small, 68 K | test error, % | 2.20 (" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_choices_on_pairs_of_pictures(pairs, tmp_path):
    assert main(["reproduce", "smallnorb-choices", "--quick", "--data", str(pairs), "--out", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    assert len(kept["runs"]) == len(find_experiment("smallnorb-choices").choose_rows("quick"))
    assert all(set(run["measures"]) == {"validation error, %"} for run in kept["runs"])
    assert all("accuracy" not in run["result"] for run in kept["runs"])
