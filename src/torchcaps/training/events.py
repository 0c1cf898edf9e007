"""Where a run stands, and what it tells those who watch it."""

import math
from dataclasses import dataclass

from torchcaps.training.metrics import NUM_SUMS


@dataclass
class Progress:
    """Where a run stands; saved with every checkpoint. Accuracy and loss are those of the best epoch on validation."""

    total_steps: int
    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    best_epoch: int = -1
    highest_accuracy: float = -1.0
    stale_epochs: int = 0
    plateau_factor: float = 1.0
    finished: bool = False
    epoch_sums: tuple[float, ...] = (0.0,) * NUM_SUMS


@dataclass(frozen=True)
class Event:
    """What a progress bar is told after every step; after an epoch with the validation figures."""

    progress: Progress
    steps_per_epoch: int
    loss: float
    accuracy: float
    examples_per_second: float = 0.0
    is_epoch_end: bool = False
    validation_accuracy: float | None = None
