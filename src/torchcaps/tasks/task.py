"""What every task answers to: the engine that trains, the predictor that asks and the run that reports know no more."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor


class ModelOutput(NamedTuple):
    """What a model says about a batch.

    Shapes:
        scores: (B, J): activations of class capsules in [0, 1], or the logits of a CNN
        poses: (B, J, D) of the class capsules, or None
        reconstruction: (B, C, H, W), or None
        ranking: (B, depth), numbers of what is recommended, the best first, or None
    """

    scores: Tensor
    poses: Tensor | None = None
    reconstruction: Tensor | None = None
    ranking: Tensor | None = None


class LossOptions(Protocol):
    """What a training configuration says about the loss of a task."""

    @property
    def loss(self) -> str:
        """Name of the loss; "auto" is the model's own, or the only one of the task."""
        ...

    @property
    def balance_classes(self) -> bool:
        """Whether absent classes weigh as much as nine do, however many there are."""
        ...

    @property
    def spread_margin(self) -> tuple[float, float]:
        """Of the spread loss, from first to last step."""
        ...

    @property
    def class_weights(self) -> Literal["balanced"] | tuple[float, ...] | None:
        """Of the examples of each class."""
        ...


ReadTargets = Callable[[], Tensor]
# (output, targets, progress of training in [0, 1]) -> the loss of each example (B,)
Loss = Callable[[ModelOutput, Tensor, float], Tensor]


class Mistake(NamedTuple):
    """A wrong answer: number of the example, what is true, what was found, and how sure the model was of it."""

    index: int
    true: str
    found: str
    confidence: float


class Report(NamedTuple):
    """What the report of a run shows beside the course of the training.

    Shapes:
        confusion: (J, J), counts of (true class, found class)
    """

    confusion: np.ndarray
    mistakes: Sequence[Mistake]


class Task(ABC):
    """What is asked of a model.

    A model has one, `model.task`, and whoever trains or asks the model asks its task what to make of the outputs.

    Attributes:
        figures: names of what is measured of every example, beside the loss; the first one decides which epoch is best.
        greater_is_better: of the first figure.
        leaves_open: whether training leaves something open that `settle` chooses on validation.
        estimate_shape: of the estimate of one example.
        estimate_type: of its entries.
    """

    figures: ClassVar[tuple[str, ...]]
    leaves_open: ClassVar[bool] = False
    greater_is_better: ClassVar[bool] = True
    estimate_type: ClassVar[type[np.generic]] = np.float32
    estimate_shape: tuple[int, ...]

    @abstractmethod
    def make_loss(self, options: LossOptions, *, default: str, read_targets: ReadTargets | None = None) -> Loss:
        """What is minimised.

        Args:
            options: what training was told about the loss.
            default: the loss that the model names as its own.
            read_targets: gives the targets of all training examples, for a loss that counts them; of some datasets that
                means to read every one.
        """

    @abstractmethod
    def measure(self, output: ModelOutput, targets: Tensor) -> Tensor:
        """The figures of each example: (len(figures), B)."""

    @abstractmethod
    def estimate(self, output: ModelOutput) -> Tensor:
        """What a model says of each example, before anything is decided: (B, *estimate_shape)."""

    def decide(self, estimates: np.ndarray) -> np.ndarray:
        """The answer for each example, from its estimate; the estimate itself where there is nothing to decide."""
        return estimates

    def classes(self, targets: Tensor) -> Tensor | None:
        """What a model is told of the examples that it learns from: the classes to reconstruct; None for nothing."""
        return None

    def look_at(self, targets: np.ndarray) -> None:
        """Learn from the targets of the training examples what answers can be like."""
        return

    def settle(self, estimates: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Choose on validation what training leaves open; what was chosen, and the figures that follow from it."""
        return {}

    @abstractmethod
    def score(self, answers: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """How good answers are: the figures, and what else is worth knowing."""

    def report(self, estimates: np.ndarray, targets: np.ndarray, names: Sequence[str]) -> Report | None:
        """What the report of a run shows; None for nothing beside the course of the training."""
        return None

    def say(self, figures: Mapping[str, float]) -> str:
        """Figures in words, for a line of progress."""
        return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())

    def quality(self, figures: Mapping[str, float]) -> float:
        """What is compared between epochs: the larger, the better."""
        first = figures[self.figures[0]]
        return first if self.greater_is_better else -first

    def chance(self, quality: float, num_examples: int) -> float:
        """How far a quality that was found on so many examples may be off by chance; 0 where nobody knows."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """What was settled, as JSON knows it; it is saved with the model."""
        return {}

    def restore(self, settled: Mapping[str, Any]) -> None:
        """Take back what `to_dict` gave, among whatever else is there."""
        return
