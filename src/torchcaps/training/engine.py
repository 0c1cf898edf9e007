"""One loop for every model: `fit(model, train, validation, config)`.

All randomness derives from (seed, epoch, step) and the whole state is in one checked file, so that a run that is killed
at any moment and resumed ends with the same bits as one that was not.
"""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from torchcaps import schedules
from torchcaps.inputs.source import Examples
from torchcaps.losses import reconstruction_loss
from torchcaps.models import Model
from torchcaps.storage import lock_folder
from torchcaps.training import checkpoint
from torchcaps.training.batches import DROPOUT, Batches, stream_seed
from torchcaps.training.choice import is_better
from torchcaps.training.config import TrainingConfig
from torchcaps.training.diagnosis import Diverged, first_broken, watch, worst_gradient
from torchcaps.training.events import Event, Progress
from torchcaps.training.metrics import Tally
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import (
    YOUNG_STEPS,
    fresh_statistics,
    has_capsule_norms,
    learning_rate,
    make_optimizer,
    set_inverse_temperature,
    settle_batch_norm,
    synchronise,
    update_average,
)
from torchcaps.training.processes import ProcessLost, check_replicated, interruptible, is_loss, processes
from torchcaps.training.tracking import MetricsFile, check_trackers

TRIAL_STEPS = 8
STATISTICS_STEPS = 32  # of an epoch, from which norms take what they need for evaluation
PLATEAU_PATIENCE = 3


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
    """The state of one run and the steps that change it; `fit` is the way in."""

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
        on_cpu = str(processes(device).device) == "cpu"
        AcceleratorState._reset_state()  # precision may differ from that of an earlier run in this process
        self.accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision=config.precision,
            log_with=list(config.trackers) or None,
            project_dir=folder,
        )
        check_replicated(self.accelerator)
        if config.trackers:
            self.accelerator.init_trackers("torchcaps")
        self.device = self.accelerator.device
        inputs, self.task = model.preprocessing, model.task
        self.batches = Batches(
            train,
            inputs,
            batch_size=config.batch_size,
            augmentation=config.augmentation,
            seed=config.seed,
            least_size=self.accelerator.num_processes,
        )
        self.validation = None if validation is None else Batches(validation, inputs, batch_size=config.batch_size)
        self.plain_model = model.to(self.device)
        synchronise(model, self.accelerator.num_processes > 1)
        model.before_training(self.batches.source)
        self.objective = make_objective(model, config, self.batches.targets)
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model, config))
        self.average = None if config.ema is None else deepcopy(model).requires_grad_(False)
        self.metrics = MetricsFile(folder) if folder is not None else None
        self.tally = self.new_tally()
        self.best: dict[str, Tensor] | None = None
        self.damage: str | None = None
        self.saved_at, self.saved_step = time.monotonic(), 0
        self.progress = self.restore() or self.start()
        self.check_same_start()
        self.clear_away()

    def run(self) -> Progress:
        """Train to the end, or until interrupted."""
        with interruptible() as was_interrupted:
            try:
                self.train_epochs(was_interrupted)
            except RuntimeError as error:
                if self.accelerator.num_processes > 1 and is_loss(error):
                    raise ProcessLost.at(self.progress.step, self.saved_step, self.folder) from error
                raise
        self.restore_best()
        self.accelerator.end_training()
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
                shall_stop, is_due = self.agree(was_interrupted(), is_due)
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
        if self.average is not None and config.ema is not None:
            update_average(self.average, self.plain_model, config.ema, progress.step)
        progress.step += 1
        seconds = time.monotonic() - started
        progress.seconds += seconds
        self.tell(self.tally, examples_per_second=len(indices) / seconds)

    def backward(self, indices: Tensor, step: int) -> None:
        """Gradients of the mean loss of a batch, whoever computes which part of it."""
        torch.manual_seed(stream_seed(self.config.seed, DROPOUT, self.progress.step, self.accelerator.process_index))
        share = self.progress.step / self.progress.total_steps
        parts = self.parts(len(indices))
        for part in parts:
            images, targets = self.batches.read(indices, part, epoch=self.progress.epoch, step=step)
            images, targets = images.to(self.device), targets.to(self.device)
            with nullcontext() if part == parts[-1] else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    output = self.model(images, self.task.classes(targets))
                losses = self.objective(output, images, targets, share)
                self.accelerator.backward(losses.sum() * (self.accelerator.num_processes / len(indices)))
            with torch.no_grad():
                self.tally.add(losses.detach(), self.task.measure(output, targets))

    def parts(self, batch_size: int) -> list[slice]:
        """This process's micro-batches of a batch."""
        rank, num_processes = self.accelerator.process_index, self.accelerator.num_processes
        start, stop = (batch_size * r // num_processes for r in (rank, rank + 1))
        # as many in every process: norms wait for each other
        num_parts = max(1, min(self.config.accumulate, batch_size // num_processes))
        cuts = [start + (stop - start) * part // num_parts for part in range(num_parts + 1)]
        return [slice(first, last) for first, last in pairwise(cuts) if first < last]

    def apply_schedules(self) -> None:
        """Set what changes with the step."""
        progress, config = self.progress, self.config
        rate = learning_rate(config, progress.step, progress.total_steps, progress.plateau_factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        if progress.step <= YOUNG_STEPS:
            settle_batch_norm(self.plain_model)
        self.set_temperature(progress.step)

    def set_temperature(self, step: int) -> None:
        """Give K-Means routings the T of a step, where it changes."""
        if self.config.inverse_temperature is None:
            return
        start, end = self.config.inverse_temperature
        value = schedules.inverse_temperature(step, self.progress.total_steps, start=start, end=end)
        for model in (self.plain_model, self.average):
            if model is not None:
                set_inverse_temperature(model, value)

    def check_finite(self, norm: Tensor, indices: Tensor, step: int) -> None:
        """Stop with a diagnosis rather than go on with NaN (fp16 scales its losses and skips such steps itself).

        The step is done again: watching every layer of every step would cost time, and clipping spoils all gradients.
        """
        if self.config.precision == "fp16":
            return
        is_finite = bool(torch.isfinite(norm + self.tally.sums[1]))
        if not any(self.agree(not is_finite)):
            return
        self.optimizer.zero_grad(set_to_none=True)
        with watch(self.plain_model) as broken:
            self.backward(indices, step)
        reason = f"what {broken[0]} gives is not finite" if broken else worst_gradient(self.plain_model)
        raise Diverged(
            f"{reason} at step {self.progress.step}; lower the learning rate or look at the data of this step"
        )

    def check_weights(self) -> None:
        """Stop rather than evaluate or keep what is broken."""
        for model in (self.plain_model, self.average):
            if model is not None and (name := first_broken(model.state_dict().items())):
                raise Diverged(f"{name} is not finite after step {self.progress.step}; lower the learning rate")

    def end_epoch(self) -> None:
        """Validate, remember the best, write metrics, decide whether to go on."""
        progress, config = self.progress, self.config
        self.check_weights()
        if self.validation is not None or progress.step >= progress.total_steps:
            self.settle_statistics()
        trained, self.tally = self.reduce(self.tally), self.new_tally()
        row = {"step": progress.step, "epoch": progress.epoch + 1, "seconds": round(progress.seconds, 3)}
        row |= {"loss": trained.loss, **trained.figures}
        validated = None
        if self.validation is not None:
            validated = self.validate(self.validation)
            row |= {"validation_loss": validated.loss}
            row |= {f"validation_{name}": value for name, value in validated.figures.items()}
            if validated.reconstruction_error is not None:
                row["validation_reconstruction_error"] = validated.reconstruction_error
            self.judge(validated)
        progress.epoch += 1
        is_stale = config.early_stopping is not None and progress.stale_epochs >= config.early_stopping
        progress.finished = progress.step >= progress.total_steps or is_stale
        if self.accelerator.is_main_process and self.metrics is not None:
            self.metrics.append(row)  # before the state: what is written twice is cut, what is not written is lost
        self.save()
        if config.trackers:
            self.accelerator.log({name: value for name, value in row.items() if name != "step"}, step=progress.step)
        self.tell(trained, is_epoch_end=True, validation=None if validated is None else validated.figures)

    def judge(self, validated: Tally) -> None:
        """Keep the weights if validation improved; count epochs in which it did not."""
        progress = self.progress
        progress.highest_quality = max(progress.highest_quality, self.task.quality(validated.figures))
        if is_better(validated, progress, self.task):
            progress.best_figures, progress.best_loss = validated.figures, validated.loss
            progress.best_epoch, progress.stale_epochs = progress.epoch, 0
            self.best = {name: tensor.clone() for name, tensor in self.evaluated_model.state_dict().items()}
        else:
            progress.stale_epochs += 1
            if progress.stale_epochs % PLATEAU_PATIENCE == 0:
                progress.plateau_factor *= 0.5

    @torch.no_grad()
    def settle_statistics(self) -> None:
        """Let the norms of the model that is evaluated remember what its own weights make of the training data."""
        model, epoch = self.evaluated_model, self.progress.epoch
        if not has_capsule_norms(model):
            return
        order = self.batches.order(epoch)
        with fresh_statistics(model):
            for step in range(min(STATISTICS_STEPS, self.batches.steps_per_epoch)):
                indices = self.batches.indices(order, step)
                for part in self.parts(len(indices)):
                    images, targets = self.batches.read(indices, part, epoch=epoch, step=step)
                    model(images.to(self.device), self.task.classes(targets.to(self.device)))

    @property
    def evaluated_model(self) -> Model:
        """The moving average if there is one, else the model itself."""
        return self.plain_model if self.average is None else self.average

    def validate(self, batches: Batches) -> Tally:
        """Loss and figures on what choices are made on, or which layer gives no number there."""
        found = self.evaluate(batches)
        if math.isfinite(found.loss):
            return found
        with watch(self.evaluated_model) as broken:
            self.evaluate(batches)
        reason = f"what {broken[0]} gives for" if broken else "the loss of"
        raise Diverged(
            f"{reason} the validation data is not finite after step {self.progress.step}; lower the learning rate"
        )

    @torch.no_grad()
    def evaluate(self, batches: Batches) -> Tally:
        """Loss and figures over a whole dataset, each process taking its share of every batch."""
        tally, model = self.new_tally(), self.evaluated_model.eval()
        order = batches.evaluation_order()
        for step in range(batches.steps_per_epoch):
            indices = batches.indices(order, step)
            for part in self.parts(len(indices)):
                images, targets = batches.read(indices, part)
                images, targets = images.to(self.device), targets.to(self.device)
                output = model(images, self.task.classes(targets))
                errors = None
                if output.reconstruction is not None:
                    errors = reconstruction_loss(output.reconstruction, images, weight=1.0, reduction="none")
                tally.add(self.objective(output, images, targets, 1.0), self.task.measure(output, targets), errors)
        return self.reduce(tally)

    def reduce(self, tally: Tally) -> Tally:
        """Sum over all processes."""
        return Tally(self.accelerator.reduce(tally.sums, "sum"), tally.names)

    def new_tally(self) -> Tally:
        """Nothing counted yet of what the task measures."""
        return Tally.empty(self.task.figures, self.device)

    def agree(self, *flags: bool) -> list[bool]:
        """Which flags any process has raised: clocks differ and signals reach one, but all must do the same next."""
        if self.accelerator.num_processes == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.float32, device=self.device)
        return (self.accelerator.reduce(raised, "sum") > 0).tolist()

    def tell(self, tally: Tally, **more: Any) -> None:
        """Report to whoever is watching."""
        if self.on_event is not None and self.accelerator.is_main_process:
            steps_per_epoch = self.batches.steps_per_epoch
            self.on_event(Event(self.progress, steps_per_epoch, self.task, tally.loss, tally.figures, **more))

    # State: started, saved, restored.

    def start(self) -> Progress:
        """A new run; its number of steps is fixed here for good."""
        self.progress = Progress(total_steps=self.config.epochs * self.batches.steps_per_epoch)
        if self.config.max_minutes is not None:
            self.progress.total_steps = self.count_steps(60 * self.config.max_minutes)
        return self.progress

    def count_steps(self, seconds: float) -> int:
        """Steps that fit into a time, from a trial that leaves no mark on the model."""
        kept = deepcopy(self.plain_model.state_dict())
        order = self.batches.order(0)
        self.model.train()
        times = []
        for step in range(TRIAL_STEPS):
            started = time.monotonic()
            self.backward(self.batches.indices(order, step % self.batches.steps_per_epoch), step)
            self.optimizer.zero_grad(set_to_none=True)
            times.append(time.monotonic() - started)
        self.plain_model.load_state_dict(kept)
        self.tally = self.new_tally()
        per_step = sorted(times[1:])[len(times) // 2]
        validated = 0 if self.validation is None else len(self.validation.source)
        per_epoch = per_step * (self.batches.steps_per_epoch + validated / self.config.batch_size / 3)
        per_step = torch.tensor(1.05 * per_epoch / self.batches.steps_per_epoch, device=self.device)
        return max(1, int(seconds / float(self.accelerator.reduce(per_step, "mean"))))

    def save(self) -> None:
        """Write the whole state."""
        self.progress.epoch_sums = tuple(self.reduce(self.tally).sums.tolist())
        self.saved_at, self.saved_step = time.monotonic(), self.progress.step
        if self.folder is None or not self.accelerator.is_main_process:
            return
        self.check_weights()
        tensors = {f"model.{name}": tensor for name, tensor in self.plain_model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        if self.best is not None:
            tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        optimizer_tensors, optimizer_values = checkpoint.optimizer_tensors(self.optimizer)
        values = {"progress": asdict(self.progress), "optimizer": optimizer_values, "config": self.config.to_dict()}
        if self.accelerator.scaler is not None:
            values["scaler"] = self.accelerator.scaler.state_dict()
        checkpoint.save_state(self.folder / checkpoint.LAST, tensors | optimizer_tensors, values)

    def restore(self) -> Progress | None:
        """Go on where the newest whole checkpoint of the folder stands; None if there is none."""
        state = None if self.folder is None else checkpoint.load_latest(self.folder)
        if state is None:
            return None
        tensors, values = state.tensors, state.values
        if TrainingConfig.from_dict(values["config"]) != self.config:
            raise ValueError(
                f"{self.folder} holds a run with another configuration; resume it with its own, or use another folder"
            )
        self.plain_model.load_state_dict(checkpoint.with_prefix(tensors, "model."))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.with_prefix(tensors, "average."))
        checkpoint.restore_optimizer(self.optimizer, tensors, values["optimizer"])
        if self.accelerator.scaler is not None and "scaler" in values:
            self.accelerator.scaler.load_state_dict(values["scaler"])
        progress = Progress.from_dict(values["progress"])
        self.saved_step, self.damage = progress.step, state.damage
        self.best = checkpoint.with_prefix(tensors, "best.") or None
        self.tally = self.new_tally()
        if self.accelerator.is_main_process:  # older states have fewer sums
            self.tally.sums[: len(progress.epoch_sums)] = torch.tensor(progress.epoch_sums, dtype=torch.float64)
        return progress

    def check_same_start(self) -> None:
        """Raise unless all processes begin at the same step."""
        if self.accelerator.num_processes == 1:
            return
        steps = self.accelerator.gather(torch.tensor([self.progress.step], device=self.device)).tolist()
        if len(set(steps)) > 1:
            raise ValueError(
                f"the processes found checkpoints of different steps in {self.folder}: {steps}; "
                "the folder of a run must be the same on all machines"
            )

    def clear_away(self) -> None:
        """Take away what does not belong to the state that the run goes on from."""
        if self.folder is None or self.metrics is None or not self.accelerator.is_main_process:
            return
        self.metrics.cut_after(self.progress.epoch)
        if self.damage is not None:
            notice = f"{self.damage}; going on from step {self.progress.step}"
            warnings.warn(notice, checkpoint.CheckpointNotice, stacklevel=2)
            # or it would take the place of the one that is whole when the next is written
            (self.folder / checkpoint.LAST).unlink(missing_ok=True)

    def restore_best(self) -> None:
        """Leave the model with the weights that were best on validation, or with the last."""
        progress = self.progress
        synchronise(self.plain_model, False)
        for name in ("forward", "_original_forward"):  # accelerate's, of mixed precision, which was for the training
            vars(self.plain_model).pop(name, None)
        self.plain_model.load_state_dict(self.evaluated_model.state_dict() if self.best is None else self.best)
        end = progress.step if self.best is None else (progress.best_epoch + 1) * self.batches.steps_per_epoch
        self.set_temperature(min(end, progress.total_steps) - 1)
        self.plain_model.eval()
