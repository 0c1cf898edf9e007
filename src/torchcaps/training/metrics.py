"""What is measured: sums over examples, so that batches, micro-batches and processes add up without double counting."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tally:
    """Running sums of a pass over data: examples, loss, and the figures of a task by name."""

    sums: Tensor
    names: tuple[str, ...]

    @classmethod
    def empty(cls, names: Sequence[str], device: torch.device | str = "cpu") -> "Tally":
        """Nothing counted yet."""
        return cls(torch.zeros(2 + len(names), dtype=torch.float64, device=device), tuple(names))

    def add(self, losses: Tensor, figures: Tensor) -> None:
        """Count a batch: losses (n,) and the figures of each example (len(names), n)."""
        num_examples = torch.tensor([len(losses)]).to(self.sums)
        self.sums += torch.cat([num_examples, losses.sum().double()[None], figures.double().sum(1)])

    @property
    def num_examples(self) -> int:
        return int(self.sums[0])

    @property
    def loss(self) -> float:
        return float(self.sums[1] / self.sums[0].clamp_min(1))

    @property
    def figures(self) -> dict[str, float]:
        """The mean of each figure."""
        return dict(zip(self.names, (self.sums[2:] / self.sums[0].clamp_min(1)).tolist(), strict=True))
