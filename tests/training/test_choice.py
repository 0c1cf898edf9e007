"""Which epoch is kept, with and without drawings."""

import json

import numpy as np
import pytest
import torch

from torchcaps.tasks.measures import standard_error
from torchcaps.training import fit
from torchcaps.training.choice import is_better
from torchcaps.training.engine import Trainer
from torchcaps.training.events import Progress
from torchcaps.training.metrics import Tally
from training.test_engine import CONFIG, new_model, stripes


def tally(right: int, loss: float, error: float | None) -> Tally:
    """Of 500 examples."""
    found = Tally.empty(["accuracy"])
    errors = None if error is None else torch.full((500,), error)
    found.add(torch.full((500,), loss), (torch.arange(500) < right)[None], errors)
    return found


def kept(epochs: list[tuple[int, float]], *, draws: bool) -> int:
    """Which of these epochs (right answers, loss) a run ends with."""
    trainer = Trainer(new_model(), stripes(), None, CONFIG)
    for trainer.progress.epoch, (right, loss) in enumerate(epochs):
        trainer.state.judge(tally(right, loss, 20.0 if draws else None))
    return trainer.progress.best_epoch


def test_the_error_of_a_binomial_share_is_never_zero():
    draws = np.random.default_rng(0).binomial(500, 0.99, 100_000) / 500
    assert standard_error(0.99, 500) == pytest.approx(draws.std(), rel=0.2)
    assert 0 < standard_error(1.0, 500) < 2 / 500


def test_a_tally_knows_whether_anything_was_drawn():
    assert tally(490, 0.5, None).reconstruction_error is None
    found = tally(490, 0.5, 20.0)
    found.add(torch.zeros(500), torch.ones(1, 500), torch.full((500,), 10.0))
    assert found.reconstruction_error == 15.0
    assert (found.loss, found.figures) == (0.25, {"accuracy": 0.99})


@pytest.mark.parametrize(
    ("epochs", "draws", "expected"),
    [
        pytest.param([(495, 0.20), (494, 0.10)], True, 1, id="one answer less is chance, the drawings are better"),
        pytest.param([(495, 0.20), (494, 0.10)], False, 0, id="without drawings accuracy decides"),
        pytest.param([(495, 0.20), (490, 0.10)], True, 0, id="five answers less are not"),
        pytest.param([(495, 0.10), (496, 0.20)], True, 0, id="one answer more is chance as well"),
        pytest.param([(480, 0.10), (495, 0.20), (494, 0.15)], True, 2, id="what is left behind does not come back"),
        pytest.param([(500, 0.20), (499, 0.10)], True, 1, id="a perfect epoch can be followed"),
        pytest.param([(494, 0.20), (497, 0.30), (494, 0.10)], True, 1, id="the highest accuracy counts, kept or not"),
    ],
)
def test_which_epoch_is_kept(epochs, draws, expected):
    assert kept(epochs, draws=draws) == expected


def test_a_state_of_before_goes_on():
    saved = {"total_steps": 10, "best_accuracy": 0.99, "best_loss": 0.2, "epoch_sums": [8.0, 1.0, 7.0]}
    old = Progress.from_dict(saved)  # knew no highest accuracy and no other figures
    trainer = Trainer(new_model(), stripes(), None, CONFIG)
    trainer.state.progress = old
    trainer.state.judge(tally(480, 0.1, 20.0))
    assert (old.best_epoch, old.highest_quality, old.stale_epochs) == (-1, 0.99, 1)
    assert is_better(tally(494, 0.1, 20.0), old, trainer.task)


def test_metrics_tell_the_error_where_there_is_a_decoder(tmp_path):
    model, validation = new_model("capsnet-small"), stripes(33, seed=1)
    progress = fit(model, stripes(), validation, CONFIG, folder=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    with torch.no_grad():
        images, classes = model.preprocessing(validation.images), torch.from_numpy(validation.labels)
        error = (model(images, classes).reconstruction - images).square().flatten(1).sum(1).mean()
    assert rows[progress.best_epoch]["validation_reconstruction_error"] == pytest.approx(float(error), rel=1e-4)
    fit(new_model(), stripes(), validation, CONFIG, folder=tmp_path / "plain")
    assert "reconstruction" not in (tmp_path / "plain" / "metrics.jsonl").read_text()
