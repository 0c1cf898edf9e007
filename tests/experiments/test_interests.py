"""Interests against baselines: rows are complete and fair, and a run is measured as it says."""

import json

import pytest

from torchcaps.data.interactions import load
from torchcaps.experiments import find_experiment, interests
from torchcaps.models import list_models
from torchcaps.runs import RunConfig, run
from torchcaps.training import TrainingConfig


def test_all_models_stand_in_every_group_and_take_equal_steps():
    rows = find_experiment("interests").choose_rows("full")
    groups = {row.group for row in rows}
    assert len(groups) == 4  # two sets, two splits
    for group in groups:
        configs = [row.config for row in rows if row.group == group]
        assert {config.model for config in configs} == set(list_models("user"))
        assert len({(c.training, c.interactions, c.data) for c in configs}) == 1


def test_a_run_is_measured_as_its_test_was(tmp_path, monkeypatch):
    for module in (load, interests):
        monkeypatch.setattr(module, "NUM_PEOPLE", 400)
    config = RunConfig(
        data="people",
        task="recommend",
        model="comirec-sa",
        model_options={"item_size": 8},
        training=TrainingConfig(epochs=1, batch_size=256),
    )
    result = run(config, tmp_path)
    found = interests.measure_ranking(tmp_path)
    assert found["recall@20, %"] == pytest.approx(100 * result["recall@20"])
    assert found["diversity@50, %"] == pytest.approx(100 * result["diversity@50"])
    assert 0 <= found["interests recovered, %"] <= 100
    assert found["standard error of recall@20 over people, %"] > 0
    assert json.loads((tmp_path / "result.json").read_text())["kind"] == "user"
