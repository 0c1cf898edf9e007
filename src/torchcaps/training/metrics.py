"""What is measured: sums over examples, so that batches, micro-batches and processes add up without double counting."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tally:
    """Running sums of a pass over data: examples, loss, right answers."""

    sums: Tensor

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> "Tally":
        """Nothing counted yet."""
        return cls(torch.zeros(3, dtype=torch.float64, device=device))

    def add(self, losses: Tensor, is_right: Tensor) -> None:
        """Count a batch: losses (n,) and whether each answer was right (n,)."""
        self.sums += torch.stack(
            [torch.tensor(len(losses)).to(self.sums), losses.sum().double(), is_right.sum().double()]
        )

    @property
    def num_examples(self) -> int:
        return int(self.sums[0])

    @property
    def loss(self) -> float:
        return float(self.sums[1] / self.sums[0].clamp_min(1))

    @property
    def accuracy(self) -> float:
        """Share of examples whose answer was right (multi-label: all labels right)."""
        return float(self.sums[2] / self.sums[0].clamp_min(1))


def is_right(probabilities: Tensor, targets: Tensor, threshold: float = 0.5) -> Tensor:
    """Whether the most probable class is the true one, or for multi-hot targets whether all labels are right: (n,)."""
    if targets.dim() == 1:
        return probabilities.argmax(-1) == targets
    return ((probabilities >= threshold) == targets.bool()).all(-1)


def confusion_matrix(found: Tensor, truth: Tensor) -> Tensor:
    """Counts of (true class, found class), from bool (n, J) both: (J, J).

    A class that is found counts for itself; a class that is missed counts for every class found in its place.
    """
    missed, spurious = (truth & ~found).double(), (found & ~truth).double()
    return (missed.T @ spurious).long() + (truth & found).sum(0).diag()
