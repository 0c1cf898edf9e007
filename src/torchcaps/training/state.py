"""What a run is made of that changes from step to step: saved whole, and restored to the bit."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import Model
from torchcaps.training import checkpoint
from torchcaps.training.choice import is_better
from torchcaps.training.config import TrainingConfig
from torchcaps.training.diagnosis import Diverged, first_broken
from torchcaps.training.events import Progress
from torchcaps.training.metrics import Tally
from torchcaps.training.tracking import MetricsFile

PLATEAU_PATIENCE = 3


class RunState:
    """Weights, their average, the best of them, the optimiser, the progress, and what was counted in this epoch.

    Args:
        model: what is trained.
        optimizer: of the model.
        average: moving average of the model, None where there is none.
        scaler: of losses in fp16, None where there is none.
    """

    def __init__(self, model: Model, optimizer: Any, *, average: Model | None = None, scaler: Any = None) -> None:
        self.model, self.optimizer, self.average, self.scaler = model, optimizer, average, scaler
        self.best: dict[str, Tensor] | None = None
        self.progress = Progress(total_steps=0)
        self.tally = self.new_tally()
        self.damage: str | None = None

    @property
    def models(self) -> list[Model]:
        """The model, and its average if there is one."""
        return [self.model] if self.average is None else [self.model, self.average]

    @property
    def evaluated_model(self) -> Model:
        """The moving average if there is one, else the model itself."""
        return self.models[-1]

    def new_tally(self) -> Tally:
        """Nothing counted yet of what the task measures."""
        return Tally.empty(self.model.task.figures, next(self.model.parameters()).device)

    def judge(self, validated: Tally) -> None:
        """Keep the weights if validation improved; count epochs in which it did not."""
        progress, task = self.progress, self.model.task
        progress.highest_quality = max(progress.highest_quality, task.quality(validated.figures))
        if is_better(validated, progress, task):
            progress.best_figures, progress.best_loss = validated.figures, validated.loss
            progress.best_epoch, progress.stale_epochs = progress.epoch, 0
            self.best = {name: tensor.clone() for name, tensor in self.evaluated_model.state_dict().items()}
        else:
            progress.stale_epochs += 1
            if progress.stale_epochs % PLATEAU_PATIENCE == 0:
                progress.plateau_factor *= 0.5

    def check_weights(self) -> None:
        """Stop rather than evaluate or keep what is broken."""
        for model in self.models:
            if name := first_broken(model.state_dict().items()):
                raise Diverged(f"{name} is not finite after step {self.progress.step}; lower the learning rate")

    def save(self, folder: Path, config: TrainingConfig) -> None:
        """Write everything into one file."""
        self.check_weights()
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        if self.best is not None:
            tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        optimizer_tensors, optimizer_values = checkpoint.optimizer_tensors(self.optimizer)
        values = {"progress": asdict(self.progress), "optimizer": optimizer_values, "config": config.to_dict()}
        if self.scaler is not None:
            values["scaler"] = self.scaler.state_dict()
        checkpoint.save_state(folder / checkpoint.LAST, tensors | optimizer_tensors, values)

    def restore(self, folder: Path, config: TrainingConfig, *, is_main: bool) -> bool:
        """Go on where the newest whole checkpoint of the folder stands; False if there is none.

        What was counted in the epoch so far is the sum over all processes, and goes to the main one.
        """
        state = checkpoint.load_latest(folder)
        if state is None:
            return False
        tensors, values = state.tensors, state.values
        if TrainingConfig.from_dict(values["config"]) != config:
            raise ValueError(
                f"{folder} holds a run with another configuration; resume it with its own, or use another folder"
            )
        self.model.load_state_dict(checkpoint.with_prefix(tensors, "model."))
        if self.average is not None:
            self.average.load_state_dict(checkpoint.with_prefix(tensors, "average."))
        checkpoint.restore_optimizer(self.optimizer, tensors, values["optimizer"])
        if self.scaler is not None and "scaler" in values:
            self.scaler.load_state_dict(values["scaler"])
        self.best = checkpoint.with_prefix(tensors, "best.") or None
        self.progress, self.damage = Progress.from_dict(values["progress"]), state.damage
        self.tally = self.new_tally()
        if is_main:  # older states have fewer sums
            sums = self.progress.epoch_sums
            self.tally.sums[: len(sums)] = torch.tensor(sums, dtype=torch.float64)
        return True

    def clear_away(self, folder: Path) -> None:
        """Take away what does not belong to the state that the run goes on from."""
        MetricsFile(folder).cut_after(self.progress.epoch)
        if self.damage is not None:
            notice = f"{self.damage}; going on from step {self.progress.step}"
            warnings.warn(notice, checkpoint.CheckpointNotice, stacklevel=2)
            # or it would take the place of the one that is whole when the next is written
            (folder / checkpoint.LAST).unlink(missing_ok=True)

    def take_best(self) -> None:
        """Leave the model with the weights that were best on validation, or with the last."""
        self.model.load_state_dict(self.evaluated_model.state_dict() if self.best is None else self.best)
