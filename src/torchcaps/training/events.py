"""Where a run stands, and what it tells those who watch it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchcaps.tasks import Task


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint.

    Attributes:
        best_figures: what the task measured on validation in the best epoch, such as the accuracy; empty before that.
        highest_quality: that any epoch has reached; the best one may be a little below it, see `training.choice`.
        stale_epochs: since the best.
        epoch_sums: of examples, losses and figures of the epoch that is under way.
    """

    total_steps: int
    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    best_figures: dict[str, float] = field(default_factory=dict)
    best_loss: float = math.inf
    best_epoch: int = -1
    highest_quality: float = -math.inf
    stale_epochs: int = 0
    plateau_factor: float = 1.0
    finished: bool = False
    epoch_sums: tuple[float, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Progress":
        """What was saved, after a trip through JSON."""
        values = dict(values)
        if "best_accuracy" in values:  # of a run that was begun before there were other tasks
            best, highest = values.pop("best_accuracy"), values.pop("highest_accuracy", -1.0)
            values["best_figures"] = {"accuracy": best} if best >= 0 else {}
            values["highest_quality"] = max(best, highest)
        return cls(**(values | {"epoch_sums": tuple(values["epoch_sums"])}))


@dataclass(frozen=True)
class Event:
    """What a progress bar is told after every step; after an epoch with the validation figures.

    Attributes:
        task: what the model is asked; it says figures in words.
        figures: means over the epoch so far, by name.
        validation: the same of the validation data; None before the end of an epoch, and without such data.
    """

    progress: Progress
    steps_per_epoch: int
    task: Task
    loss: float
    figures: dict[str, float]
    examples_per_second: float = 0.0
    is_epoch_end: bool = False
    validation: dict[str, float] | None = None
