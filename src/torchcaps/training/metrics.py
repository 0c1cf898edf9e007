"""What is measured: sums over examples, so that batches, micro-batches and processes add up without double counting."""

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_SUMS = 5


@dataclass
class Tally:
    """Running sums of a pass over data: examples, loss, right answers, drawings, their squared errors."""

    sums: Tensor

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> "Tally":
        """Nothing counted yet."""
        return cls(torch.zeros(NUM_SUMS, dtype=torch.float64, device=device))

    def add(self, losses: Tensor, is_right: Tensor, errors: Tensor | None = None) -> None:
        """Count a batch: losses (n,), whether each answer was right (n,), errors of reconstruction (n,) if any."""
        count, drawn = (torch.tensor(len(part)).to(self.sums) for part in (losses, () if errors is None else errors))
        error = torch.zeros_like(drawn) if errors is None else errors.sum().double()
        self.sums += torch.stack([count, losses.sum().double(), is_right.sum().double(), drawn, error])

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

    @property
    def reconstruction_error(self) -> float | None:
        """Mean of the squared errors, summed over the pixels of an image; None where nothing was drawn."""
        return float(self.sums[4] / self.sums[3]) if self.sums[3] else None


def is_right(probabilities: Tensor, targets: Tensor, threshold: float = 0.5) -> Tensor:
    """Whether the most probable class is the true one, or for multi-hot targets whether all labels are right: (n,)."""
    if targets.dim() == 1:
        return probabilities.argmax(-1) == targets
    return ((probabilities >= threshold) == targets.bool()).all(-1)


def choose_threshold(probabilities: Tensor, targets: Tensor) -> float:
    """The probability from which classes are best taken to be there: the one with the highest micro-averaged F1.

    Every probability that occurs is tried, between it and the next smaller one; ties go to the highest.

    Shapes:
        probabilities: (n, J); targets: (n, J) bool
    """
    values, order = probabilities.double().flatten().sort(descending=True)
    hits = targets.flatten()[order].double().cumsum(0)
    scores = 2 * hits / (torch.arange(1, len(values) + 1, device=values.device) + targets.sum())
    scores[:-1][values[:-1] == values[1:]] = 0  # a threshold cannot part what is equal
    best = int(scores.argmax())
    below = values[best + 1] if best + 1 < len(values) else torch.zeros_like(values[best])
    return float((values[best] + below) / 2)


def multi_label_scores(found: Tensor, truth: Tensor) -> dict[str, float]:
    """Exact matches, and precision, recall and F1, counted over all labels (micro) and averaged over examples (sample).

    An example without true labels in which none is found is right; one side alone empty gives 0.

    Shapes:
        found, truth: (n, J) bool
    """
    found, truth = found.double(), truth.double()
    hits, num_found, num_true = (found * truth).sum(1), found.sum(1), truth.sum(1)
    both_empty = (num_found + num_true == 0).double()

    def share(part: Tensor, whole: Tensor) -> Tensor:
        return torch.where(whole > 0, part / whole.clamp_min(1), both_empty if part.dim() else 0.0)

    micro = {
        "precision": share(hits.sum(), num_found.sum()),
        "recall": share(hits.sum(), num_true.sum()),
        "f1": share(2 * hits.sum(), num_found.sum() + num_true.sum()),
    }
    sample = {
        "precision": share(hits, num_found).mean(),
        "recall": share(hits, num_true).mean(),
        "f1": share(2 * hits, num_found + num_true).mean(),
    }
    scores = {
        f"{kind}_{name}": float(v)
        for kind, group in (("micro", micro), ("sample", sample))
        for name, v in group.items()
    }
    return {"exact_match": float((found == truth).all(1).double().mean())} | scores


def confusion_matrix(found: Tensor, truth: Tensor) -> Tensor:
    """Counts of (true class, found class), from bool (n, J) both: (J, J).

    A class that is found counts for itself; a class that is missed counts for every class found in its place.
    """
    missed, spurious = (truth & ~found).double(), (found & ~truth).double()
    return (missed.T @ spurious).long() + (truth & found).sum(0).diag()
