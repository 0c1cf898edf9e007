"""What is measured: sums over examples, so that batches, micro-batches and processes add up without double counting."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Tally:
    """Running sums of a pass over data: examples, loss, the figures of a task, drawings, their squared errors."""

    sums: Tensor
    names: tuple[str, ...]

    @classmethod
    def empty(cls, names: Sequence[str], device: torch.device | str = "cpu") -> "Tally":
        """Nothing counted yet of figures with these names."""
        return cls(torch.zeros(4 + len(names), dtype=torch.float64, device=device), tuple(names))

    def add(self, losses: Tensor, figures: Tensor, errors: Tensor | None = None) -> None:
        """Count a batch: losses (n,), figures of each example (len(names), n), errors of reconstruction (n,) if any."""
        count, drawn = (torch.tensor(len(part)).to(self.sums) for part in (losses, () if errors is None else errors))
        error = torch.zeros_like(drawn) if errors is None else errors.sum().double()
        self.sums += torch.stack([count, losses.sum().double(), *figures.double().sum(1), drawn, error])

    @property
    def num_examples(self) -> int:
        return int(self.sums[0])

    @property
    def loss(self) -> float:
        return float(self.sums[1] / self.sums[0].clamp_min(1))

    @property
    def figures(self) -> dict[str, float]:
        """The mean of each figure."""
        return dict(zip(self.names, (self.sums[2:-2] / self.sums[0].clamp_min(1)).tolist(), strict=True))

    @property
    def reconstruction_error(self) -> float | None:
        """Mean of the squared errors, summed over the pixels of an image; None where nothing was drawn."""
        return float(self.sums[-1] / self.sums[-2]) if self.sums[-2] else None
