"""Metrics reach the trackers that were asked for, and one that is missing is not passed over in silence."""

from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchcaps.training.tracking import MetricsFile, check_trackers
from training.test_engine import CONFIG, train


def test_tensorboard_gets_what_the_metrics_file_gets(tmp_path):
    train(config=replace(CONFIG, trackers=("tensorboard",)), folder=tmp_path)
    events = EventAccumulator(str(tmp_path / "torchcaps"))
    events.Reload()
    rows = MetricsFile(tmp_path).read()
    assert len(rows) == 2
    for name in ("loss", "accuracy", "validation_loss", "validation_accuracy"):
        scalars = [(event.step, event.value) for event in events.Scalars(name)]
        assert scalars == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]


def test_missing_and_unknown_trackers_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        train(config=replace(CONFIG, trackers=("tensorbord",)), folder=tmp_path)
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(ValueError, match=r"tensorboard is not installed: pip install 'torchcaps\[tensorboard\]'"):
        check_trackers(["tensorboard"])
