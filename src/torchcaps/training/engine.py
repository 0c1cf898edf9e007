"""One loop for every model and every task: `fit(model, train, validation, config)`.

All randomness derives from (seed, epoch, step) and the whole state is in one checked file, so that a run that is killed
at any moment and resumed ends with the same bits as one that was not. What is minimised and measured, the model's task
says; how raw inputs become the model's, its inputs.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps import schedules
from torchcaps.inputs.source import Examples
from torchcaps.models import Model
from torchcaps.storage import lock_folder
from torchcaps.training.batches import DROPOUT, Batches, stream_seed
from torchcaps.training.config import TrainingConfig
from torchcaps.training.diagnosis import Diverged, watch, worst_gradient
from torchcaps.training.evaluation import evaluate, settle_statistics, validate
from torchcaps.training.events import Event, Progress
from torchcaps.training.metrics import Tally
from torchcaps.training.mixup import read_mixture
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import (
    YOUNG_STEPS,
    learning_rate,
    make_optimizer,
    set_inverse_temperature,
    settle_batch_norm,
    synchronise,
    update_average,
)
from torchcaps.training.processes import (
    ProcessLost,
    agree,
    check_same_step,
    cut,
    interruptible,
    is_loss,
    new_accelerator,
    processes,
)
from torchcaps.training.state import RunState
from torchcaps.training.tracking import MetricsFile, check_trackers

TRIAL_STEPS = 8


class Interrupted(KeyboardInterrupt):
    """Training was stopped by the user; the state is saved."""


def fit(
    model: Model,
    train: Examples,
    validation: Examples | None = None,
    config: TrainingConfig | None = None,
    *,
    folder: Path | None = None,
    on_event: Callable[[Event], None] | None = None,
    device: str = "auto",
) -> Progress:
    """Train a model in place; it ends with the weights that were best on validation, or the last without validation.

    Args:
        model: what to train; its preprocessing is applied to the raw images or texts, and its task says what for.
        train: an ImageSet, a TextSet or any dataset of (uint8 image or text, target).
        validation: chooses the best epoch (see `training.choice`) and drives plateaus and early stopping; never the
            test set.
        config: how.
        folder: where checkpoints and metrics go; a run that was stopped there is resumed. None keeps nothing.
        on_event: called after every step and epoch by the main process.
        device: "cpu", or a kind of accelerator such as "cuda"; "auto" takes the accelerator if there is one.

    Returns:
        Where the run ended.
    """
    config = config or TrainingConfig()
    is_writer = folder is not None and processes(device).is_main_process
    with lock_folder(folder) if is_writer else nullcontext():
        return Trainer(model, train, validation, config, folder=folder, on_event=on_event, device=device).run()


class Trainer:
    """The steps that change the state of one run; `fit` is the way in."""

    def __init__(
        self,
        model: Model,
        train: Examples,
        validation: Examples | None,
        config: TrainingConfig,
        *,
        folder: Path | None = None,
        on_event: Callable[[Event], None] | None = None,
        device: str = "auto",
    ) -> None:
        self.config, self.folder, self.on_event = config, folder, on_event
        check_trackers(config.trackers)
        self.accelerator = new_accelerator(device, config, folder)
        self.device, self.task = self.accelerator.device, model.task
        inputs, batch_size, num_processes = model.preprocessing, config.batch_size, self.accelerator.num_processes
        told: dict[str, Any] = {"augmentation": config.augmentation, "seed": config.seed, "least_size": num_processes}
        self.batches = Batches(train, inputs, batch_size=batch_size, **told)
        self.validation = None if validation is None else Batches(validation, inputs, batch_size=batch_size)
        synchronise(model.to(self.device), num_processes > 1)
        model.before_training(self.batches.source)
        self.objective = make_objective(model, config, self.batches.targets)
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model, config))
        average = None if config.ema is None else deepcopy(model).requires_grad_(False)
        self.state = RunState(model, self.optimizer, average=average, scaler=self.accelerator.scaler)
        is_main = self.accelerator.is_main_process
        if folder is None or not self.state.restore(folder, config, is_main=is_main):
            self.start()
        self.saved_at, self.saved_step = time.monotonic(), self.progress.step
        check_same_step(self.accelerator, self.progress.step, folder)
        if folder is not None and is_main:
            self.state.clear_away(folder)

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        return self.state.progress

    def run(self) -> Progress:
        """Train to the end, or until interrupted."""
        with interruptible() as was_interrupted:
            try:
                self.train_epochs(was_interrupted)
            except RuntimeError as error:
                if self.accelerator.num_processes > 1 and is_loss(error):
                    raise ProcessLost.at(self.progress.step, self.saved_step, self.folder) from error
                raise
        self.finish()
        for tracker in self.accelerator.trackers:  # the processes stay together: another run may follow in this script
            tracker.finish()
        return self.progress

    def train_epochs(self, was_interrupted: Callable[[], bool]) -> None:
        """Epoch after epoch, with a checkpoint whenever it is time for one."""
        progress, steps_per_epoch = self.progress, self.batches.steps_per_epoch
        while not progress.finished:
            order = self.batches.order(progress.epoch)
            for step in range(progress.step - progress.epoch * steps_per_epoch, steps_per_epoch):
                if progress.step >= progress.total_steps:
                    break
                self.train_step(self.batches.indices(order, step), step)
                is_due = time.monotonic() - self.saved_at > 60 * self.config.checkpoint_minutes
                shall_stop, is_due = agree(self.accelerator, was_interrupted(), is_due)
                if shall_stop or is_due:
                    self.save()
                if shall_stop:
                    raise Interrupted
            self.end_epoch()

    def train_step(self, indices: Tensor, step: int) -> None:
        """One optimiser step on one batch, shared among processes and cut into micro-batches."""
        config, progress, started = self.config, self.progress, time.monotonic()
        self.model.train()
        self.apply_schedules()
        self.backward(indices, step)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip_norm or math.inf)
        self.check_finite(torch.as_tensor(norm), indices, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.state.average is not None and config.ema is not None:
            update_average(self.state.average, self.state.model, config.ema, progress.step)
        progress.step += 1
        seconds = time.monotonic() - started
        progress.seconds += seconds
        self.tell(self.state.tally, examples_per_second=len(indices) / seconds)

    def backward(self, indices: Tensor, step: int) -> None:
        """Gradients of the mean loss of a batch, whoever computes which part of it."""
        torch.manual_seed(stream_seed(self.config.seed, DROPOUT, self.progress.step, self.accelerator.process_index))
        share = self.progress.step / self.progress.total_steps
        parts = self.parts(len(indices))
        for part in parts:
            mixture = read_mixture(
                self.batches, indices, part, epoch=self.progress.epoch, step=step, mixup=self.config.mixup
            ).to(self.device)
            with nullcontext() if part == parts[-1] else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    output = self.model(mixture.inputs, self.task.classes(mixture.targets))
                losses = mixture.losses(self.objective, output, share)
                self.accelerator.backward(losses.sum() * (self.accelerator.num_processes / len(indices)))
            with torch.no_grad():
                self.state.tally.add(losses.detach(), self.task.measure(output, mixture.targets))

    def parts(self, batch_size: int) -> list[slice]:
        """This process's micro-batches of a batch."""
        return cut(batch_size, self.config.accumulate, self.accelerator)

    def apply_schedules(self) -> None:
        """Set what changes with the step."""
        progress, config = self.progress, self.config
        rate = learning_rate(config, progress.step, progress.total_steps, progress.plateau_factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        if progress.step <= YOUNG_STEPS:
            settle_batch_norm(self.state.model)
        self.set_temperature(progress.step)

    def set_temperature(self, step: int) -> None:
        """Give K-Means routings the T of a step, where it changes."""
        if self.config.inverse_temperature is None:
            return
        start, end = self.config.inverse_temperature
        value = schedules.inverse_temperature(step, self.progress.total_steps, start=start, end=end)
        for model in self.state.models:
            set_inverse_temperature(model, value)

    def check_finite(self, norm: Tensor, indices: Tensor, step: int) -> None:
        """Stop with a diagnosis rather than go on with NaN (fp16 scales its losses and skips such steps itself).

        The step is done again: watching every layer of every step would cost time, and clipping spoils all gradients.
        """
        if self.config.precision == "fp16":
            return
        is_finite = bool(torch.isfinite(norm + self.state.tally.sums[1]))
        if not any(agree(self.accelerator, not is_finite)):
            return
        self.optimizer.zero_grad(set_to_none=True)
        with watch(self.state.model) as broken:
            self.backward(indices, step)
        reason = f"what {broken[0]} gives is not finite" if broken else worst_gradient(self.state.model)
        raise Diverged(
            f"{reason} at step {self.progress.step}; lower the learning rate or look at the data of this step"
        )

    def end_epoch(self) -> None:
        """Validate, remember the best, write metrics, decide whether to go on."""
        progress, config, state = self.progress, self.config, self.state
        state.check_weights()
        if self.validation is not None or progress.step >= progress.total_steps:
            settle_statistics(state.evaluated_model, self.batches, progress.epoch, self.parts)
        trained, state.tally = self.reduce(state.tally), state.new_tally()
        row = {"step": progress.step, "epoch": progress.epoch + 1, "seconds": round(progress.seconds, 3)}
        row |= {"loss": trained.loss, **trained.figures}
        figures = None
        if self.validation is not None:
            batches = self.validation
            validated = validate(lambda: self.evaluate(batches), state.evaluated_model, progress.step)
            figures = validated.figures
            row |= {"validation_loss": validated.loss}
            row |= {f"validation_{name}": value for name, value in figures.items()}
            if validated.reconstruction_error is not None:
                row["validation_reconstruction_error"] = validated.reconstruction_error
            state.judge(validated)
        progress.epoch += 1
        is_stale = config.early_stopping is not None and progress.stale_epochs >= config.early_stopping
        progress.finished = progress.step >= progress.total_steps or is_stale
        if self.folder is not None and self.accelerator.is_main_process:
            # before the state: what is written twice is cut, what is not written is lost
            MetricsFile(self.folder).append(row)
        self.save()
        if config.trackers:
            self.accelerator.log({name: value for name, value in row.items() if name != "step"}, step=progress.step)
        self.tell(trained, is_epoch_end=True, validation=figures)

    def evaluate(self, batches: Batches) -> Tally:
        """Loss and figures over a whole dataset, each process taking its share of every batch."""
        state = self.state
        return self.reduce(evaluate(state.evaluated_model, batches, self.objective, state.new_tally(), self.parts))

    def reduce(self, tally: Tally) -> Tally:
        """Sum over all processes."""
        return Tally(self.accelerator.reduce(tally.sums, "sum"), tally.names)

    def tell(self, tally: Tally, **more: Any) -> None:
        """Report to whoever is watching."""
        if self.on_event is not None and self.accelerator.is_main_process:
            steps_per_epoch = self.batches.steps_per_epoch
            self.on_event(Event(self.progress, steps_per_epoch, self.task, tally.loss, tally.figures, **more))

    def start(self) -> None:
        """A new run; its number of steps is fixed here for good."""
        self.progress.total_steps = self.config.epochs * self.batches.steps_per_epoch
        if self.config.max_minutes is not None:
            self.progress.total_steps = self.count_steps(60 * self.config.max_minutes)

    def count_steps(self, seconds: float) -> int:
        """Steps that fit into a time, from a trial that leaves no mark on the model."""
        kept = deepcopy(self.state.model.state_dict())
        order = self.batches.order(0)
        self.model.train()
        times = []
        for step in range(TRIAL_STEPS):
            started = time.monotonic()
            self.backward(self.batches.indices(order, step % self.batches.steps_per_epoch), step)
            self.optimizer.zero_grad(set_to_none=True)
            times.append(time.monotonic() - started)
        self.state.model.load_state_dict(kept)
        self.state.tally = self.state.new_tally()
        per_step = sorted(times[1:])[len(times) // 2]
        validated = 0 if self.validation is None else len(self.validation.source)
        per_epoch = per_step * (self.batches.steps_per_epoch + validated / self.config.batch_size / 3)
        per_step = torch.tensor(1.05 * per_epoch / self.batches.steps_per_epoch, device=self.device)
        return max(1, int(seconds / float(self.accelerator.reduce(per_step, "mean"))))

    def save(self) -> None:
        """Write the whole state."""
        self.progress.epoch_sums = tuple(self.reduce(self.state.tally).sums.tolist())
        self.saved_at, self.saved_step = time.monotonic(), self.progress.step
        if self.folder is not None and self.accelerator.is_main_process:
            self.state.save(self.folder, self.config)

    def finish(self) -> None:
        """Leave the model with the weights that were best on validation, or with the last, as if it had never run."""
        model, progress = self.state.model, self.progress
        synchronise(model, False)
        for name in ("forward", "_original_forward"):  # accelerate's, of mixed precision, which was for the training
            vars(model).pop(name, None)
        self.state.take_best()
        end = progress.step if self.state.best is None else (progress.best_epoch + 1) * self.batches.steps_per_epoch
        self.set_temperature(min(end, progress.total_steps) - 1)
        model.eval()
