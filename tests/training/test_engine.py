"""The loop: it learns, it resumes to the bit, it does not depend on how a batch is cut."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torchcaps.data import Augmentation, ImageSet
from torchcaps.models import create_model
from torchcaps.schedules import inverse_temperature
from torchcaps.tasks.weights import class_weights, example_weights
from torchcaps.training import Interrupted, TrainingConfig, fit
from torchcaps.training.checkpoint import (
    LAST,
    PREVIOUS,
    CheckpointError,
    CheckpointNotice,
    load_latest,
    load_state,
    with_prefix,
)
from torchcaps.training.engine import Trainer
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import fresh_statistics, learning_rate
from torchcaps.training.tracking import MetricsFile

CONFIG = TrainingConfig(epochs=2, batch_size=16, augmentation=Augmentation(shift=1), learning_rate=1e-2)


def stripes(num: int = 96, seed: int = 0) -> ImageSet:
    """Images with horizontal (class 0) or vertical (class 1) stripes and noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, num)
    pattern = (np.arange(19) % 4 < 2) * 160
    images = np.where(labels[:, None, None] == 0, pattern[:, None], pattern[None, :])
    images = (images + generator.integers(0, 90, (num, 19, 19))).astype(np.uint8)
    return ImageSet(images=images, labels=labels.astype(np.int64), class_names=("horizontal", "vertical"))


def new_model(name: str = "matrix-capsnet-small", **options):
    torch.manual_seed(0)
    if name == "matrix-capsnet-small":
        options = {"channels": 4, "types": (2, 2, 2)} | options
    return create_model(name, image_shape=(1, 19, 19), num_classes=2, **options)


def train(model=None, config=CONFIG, **options):
    model = model or new_model()
    progress = fit(model, stripes(), stripes(33, seed=1), config, **options)  # 33: the last batch is one image
    return model, progress


def same_weights(first, second) -> bool:
    return all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("name", ["capsnet-small", "cnn-small"])
def test_it_learns(name):
    events = []
    model, progress = train(new_model(name), replace(CONFIG, epochs=4), on_event=events.append)
    assert progress.best_figures["accuracy"] >= 0.9
    assert progress.finished
    assert progress.step == progress.total_steps == 24
    assert sum(event.is_epoch_end for event in events) == 4
    assert not model.training


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    first, again, other = train()[0], train()[0], train(config=replace(CONFIG, seed=1))[0]
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_interrupted_and_resumed_is_exact(tmp_path):
    whole, expected = train(folder=tmp_path / "whole")

    def stop_at(step):
        def on_event(event):
            if event.progress.step == step and not event.is_epoch_end:
                os.kill(os.getpid(), signal.SIGINT)

        return on_event

    for step in (1, 6, 9):
        with pytest.raises(Interrupted):
            train(folder=tmp_path / "parts", on_event=stop_at(step))
    model, progress = train(folder=tmp_path / "parts")
    assert same_weights(model, whole)
    assert replace_seconds(progress) == replace_seconds(expected)
    rows = [(tmp_path / part / "metrics.jsonl").read_text().splitlines() for part in ("whole", "parts")]
    for a, b in zip(*rows, strict=True):
        assert json.loads(a) | {"seconds": 0} == json.loads(b) | {"seconds": 0}


def replace_seconds(progress):
    return replace(progress, seconds=0.0)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from dataclasses import replace
import test_engine
config = replace(test_engine.CONFIG, checkpoint_minutes=1e-6)
test_engine.train(config=config, folder=Path({folder!r}))
"""


def test_killed_and_resumed_is_exact(tmp_path):
    config = replace(CONFIG, checkpoint_minutes=1e-6)  # a checkpoint after every step: kills hit the writing too
    whole, _ = train(config=config, folder=tmp_path / "whole")
    script = SCRIPT.format(tests=os.path.dirname(__file__), folder=str(tmp_path / "killed"))
    last = tmp_path / "killed" / LAST
    for wait in (0.0, 0.05, 0.15):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = last.stat().st_mtime_ns if last.exists() else 0
        while process.poll() is None and not (last.exists() and last.stat().st_mtime_ns != before):
            time.sleep(0.005)
        time.sleep(wait)
        process.kill()
        assert process.wait() == -signal.SIGKILL or wait > 0  # the first is hit long before its end
    assert load_latest(tmp_path / "killed").values["progress"]["step"] > 0
    model, _ = train(config=config, folder=tmp_path / "killed")
    assert same_weights(model, whole)


def stopped_at(step: int, folder, config=CONFIG) -> None:
    """A run with a checkpoint after every step that ended without a word after one of them."""

    def stop(event):
        if event.progress.step == step and not event.is_epoch_end:
            raise KeyError("the end")

    with pytest.raises(KeyError, match="the end"):
        train(config=replace(config, checkpoint_minutes=1e-6), folder=folder, on_event=stop)


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_ends_with_the_same_bits(undisturbed, tmp_path):
    config = replace(CONFIG, checkpoint_minutes=1e-6)
    stopped_at(9, tmp_path / "damaged")  # the best weights so far are in the checkpoints too
    last = tmp_path / "damaged" / LAST
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.warns(CheckpointNotice, match=f"{LAST} is damaged: .*; going on from step 7"):
        model, _ = train(config=config, folder=tmp_path / "damaged")
    assert same_weights(model, undisturbed)
    for name in (LAST, PREVIOUS):
        (tmp_path / "damaged" / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        train(config=config, folder=tmp_path / "damaged")


@pytest.fixture(scope="module")
def undisturbed():
    return train()[0]


@pytest.mark.parametrize(
    ("where", "epoch"), [("before the row", 1), ("after the row", 1), ("after the state", 1), ("after the row", 2)]
)
def test_an_end_anywhere_at_the_end_of_an_epoch_neither_loses_nor_doubles_a_row(
    where, epoch, undisturbed, tmp_path, monkeypatch
):
    config = replace(CONFIG, checkpoint_minutes=1e-6)  # so that there is a checkpoint of the epoch's last step
    append, save = MetricsFile.append, Trainer.save

    def append_or_end(self, row):
        is_due = row["epoch"] == epoch
        if is_due and where == "before the row":
            raise KeyError("the end")
        append(self, row)
        if is_due and where == "after the row":
            raise KeyError("the end")

    def save_or_end(self):
        save(self)
        if self.progress.epoch == epoch and where == "after the state":
            raise KeyError("the end")

    with monkeypatch.context() as patched:
        patched.setattr(MetricsFile, "append", append_or_end)
        patched.setattr(Trainer, "save", save_or_end)
        with pytest.raises(KeyError, match="the end"):
            train(config=config, folder=tmp_path / "ended")
    model, _ = train(config=config, folder=tmp_path / "ended")
    assert same_weights(model, undisturbed)
    assert [row["epoch"] for row in MetricsFile(tmp_path / "ended").read()] == [1, 2]


def test_accumulation_gives_the_same_step():
    config = replace(CONFIG, epochs=1, ema=None, optimizer="sgd", learning_rate=1e-3)
    start, one, three = (new_model(variant="paper") for _ in range(3))  # norms would see other batches
    for model, number in ((one, 1), (three, 3)):
        train(model, replace(config, accumulate=number))
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(start.parameters(), one.parameters(), strict=True))
    assert moved > 1e-3
    for a, b in zip(one.parameters(), three.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.01 * moved)


def test_all_processes_cut_a_batch_into_as_many_parts():
    trainer = Trainer(new_model(), stripes(), None, replace(CONFIG, accumulate=3))
    for num_processes in (1, 2, 3):
        for size in range(num_processes, 20):
            cut = []
            for rank in range(num_processes):
                trainer.accelerator = SimpleNamespace(process_index=rank, num_processes=num_processes)
                cut.append(trainer.parts(size))
            assert len({len(parts) for parts in cut}) == 1
            assert [i for parts in cut for part in parts for i in range(size)[part]] == list(range(size))


@pytest.mark.parametrize("ema", [None, 0.999])
def test_norms_remember_what_the_final_weights_make_of_the_data(ema):
    """Running statistics would lag behind weights that move fast, and further behind averaged ones."""
    trainer = Trainer(new_model(), stripes(), None, replace(CONFIG, epochs=1, ema=ema))
    trainer.run()
    model, batches = trainer.state.model, trainer.batches
    remembered = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with fresh_statistics(model), torch.no_grad():
        for step in range(batches.steps_per_epoch):
            indices = batches.indices(batches.order(0), step)
            model(batches.read(indices, slice(0, len(indices)), epoch=0, step=step)[0])
    assert remembered.keys() == dict(model.named_buffers()).keys() != set()
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, remembered[name])
    assert int(model.conv1.norm.num_batches_tracked) == batches.steps_per_epoch
    assert not any(module.training for module in model.modules())
    assert model.conv1.norm.momentum is not None


def test_em_follows_the_inverse_temperature():
    model = new_model(routing_options={"num_iterations": 2})
    fit(model, stripes(), None, replace(CONFIG, inverse_temperature=(0.1, 1.0)))
    last = inverse_temperature(11, 12, start=0.1, end=1.0)
    assert model.class_capsules.routing.options["inverse_temperature"] == pytest.approx(last)
    assert model.options["routing_options"]["inverse_temperature"] == pytest.approx(last)


def test_minutes_fix_the_number_of_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "count_steps", lambda self, seconds: round(seconds))
    config = replace(CONFIG, max_minutes=0.25)
    _, progress = train(config=config, folder=tmp_path)
    assert progress.step == progress.total_steps == 15
    assert load_state(tmp_path / LAST)[1]["progress"]["total_steps"] == progress.total_steps


def test_steps_that_fit_into_a_time(monkeypatch):
    trainer = Trainer(new_model(), stripes(), None, CONFIG)
    clock = iter(range(1000))
    monkeypatch.setattr("torchcaps.training.engine.time.monotonic", lambda: float(next(clock)))
    before = {name: tensor.clone() for name, tensor in trainer.state.model.state_dict().items()}
    assert trainer.count_steps(105.5) == 100  # each trial takes a second, and five percent are kept back
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state.model.state_dict().items())


def test_early_stopping_and_best_weights(tmp_path):
    config = replace(CONFIG, epochs=30, early_stopping=2, learning_rate=1e-9, ema=None)
    model, progress = train(config=config, folder=tmp_path)
    assert progress.epoch == progress.best_epoch + 3
    best = with_prefix(load_state(tmp_path / LAST)[0], "best.")
    assert all(torch.equal(best[name], tensor) for name, tensor in model.state_dict().items())


def test_another_configuration_is_not_mixed_in(tmp_path):
    train(folder=tmp_path)
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        train(config=replace(CONFIG, seed=5), folder=tmp_path)


def test_targets_are_read_only_to_be_counted():
    def read() -> torch.Tensor:
        raise AssertionError("read")

    assert class_weights(None, read, 2) is None
    assert class_weights((1.0, 2.0), read, 2).tolist() == [1.0, 2.0]
    assert class_weights("balanced", lambda: torch.tensor([0, 0, 0, 1]), 2).tolist() == pytest.approx([2 / 3, 2.0])


def test_weights_are_those_of_examples():
    weights = torch.tensor([0.5, 2.0, 4.0])
    assert example_weights(weights, torch.tensor([2, 0])).tolist() == [4.0, 0.5]
    several = torch.tensor([[0, 0, 1], [1, 1, 0], [0, 0, 0]])
    assert example_weights(weights, several).tolist() == [4.0, 1.25, 1.0]
    counted = class_weights("balanced", lambda: torch.tensor([[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]]), 3)
    assert counted.tolist() == pytest.approx([2 / 3, 2.0, 1.0])  # nothing is known of a class without examples


def test_class_weights_and_any_dataset():
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return np.full((19, 19), 10 * index, np.uint8), int(index < 3)

    progress = fit(new_model(), Pairs(), None, replace(CONFIG, class_weights="balanced"))
    assert progress.step == 4
    with pytest.raises(ValueError, match="one weight for each of 2 classes"):
        fit(new_model(), Pairs(), None, replace(CONFIG, class_weights=(1.0, 2.0, 3.0)))
    with pytest.raises(ValueError, match="class_weights must be 0 or more"):
        replace(CONFIG, class_weights=(1.0, -2.0))
    with pytest.raises(ValueError, match="the dataset is empty"):
        fit(new_model(), torch.utils.data.Subset(Pairs(), []), None, CONFIG)


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy"])
def test_a_class_weight_multiplies_the_loss_of_its_examples(loss):
    model, config = new_model(), replace(CONFIG, loss=loss)
    images, targets = torch.rand(4, 1, 19, 19), torch.tensor([0, 1, 1, 0])
    output, weights = model(images), torch.tensor([0.5, 3.0])
    plain = make_objective(model, config)(output, images, targets, 0.5)
    told = replace(config, class_weights=tuple(weights.tolist()))
    weighted = make_objective(model, told)(output, images, targets, 0.5)
    torch.testing.assert_close(weighted, plain * weights[targets])


def test_batch_statistics_of_a_short_run_forget_their_start():
    dark = ImageSet(images=stripes().images // 64, labels=stripes().labels, class_names=("horizontal", "vertical"))
    fit(model := new_model("cnn-small"), dark, None, replace(CONFIG, epochs=1))
    assert float(model.network[0][1].running_var.max()) < 0.01  # began at 1


def test_mixed_precision_trains():
    model, progress = train(config=replace(CONFIG, precision="bf16"))
    assert progress.finished
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert "forward" not in vars(model)  # whoever uses it now has the precision of the weights, as its saved form


def test_a_loss_scale_is_saved_and_restored(tmp_path):
    trainer = Trainer(new_model(), stripes(), None, CONFIG, folder=tmp_path)
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    trainer.save()
    again = Trainer(new_model(), stripes(), None, CONFIG, folder=tmp_path)
    again.state.scaler = torch.amp.GradScaler("cpu")
    assert again.state.restore(tmp_path, CONFIG, is_main=True)
    assert again.state.scaler.get_scale() == 128.0


def test_the_best_weights_have_the_temperature_they_were_chosen_with(tmp_path):
    config = replace(CONFIG, epochs=4, inverse_temperature=(100.0, 1.0), loss="margin", learning_rate=1e-9, ema=None)
    models = [new_model(routing="kmeans"), new_model(routing="kmeans")]
    for model in models:  # the second time everything is finished
        progress = fit(model, stripes(), stripes(32, seed=1), config, folder=tmp_path)
    assert progress.best_epoch < 3
    expected = inverse_temperature(6 * (progress.best_epoch + 1) - 1, 24, start=100.0, end=1.0)
    for model in models:
        assert model.class_capsules.routing.options["inverse_temperature"] == expected
    assert same_weights(*models)


def test_inverse_temperature_is_scheduled_and_saved():
    model = new_model(routing="kmeans")
    fit(model, stripes(), None, replace(CONFIG, inverse_temperature=(1.0, 4.0), loss="margin"))
    assert model.class_capsules.routing.options["inverse_temperature"] > 3
    assert model.config()["arguments"]["routing_options"]["inverse_temperature"] > 3


@pytest.mark.parametrize("schedule", ["cosine", "step", "plateau", "constant"])
def test_learning_rates(schedule):
    config = replace(CONFIG, schedule=schedule, learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(config, step, 100, 1.0) for step in range(100)]
    assert 0 < rates[0] < 0.2
    assert max(rates) == pytest.approx(1.0, abs=0.02)
    expected = {"cosine": 0.0, "step": 0.01, "plateau": 1.0, "constant": 1.0}
    assert rates[-1] == pytest.approx(expected[schedule], abs=1e-2)
    assert TrainingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
