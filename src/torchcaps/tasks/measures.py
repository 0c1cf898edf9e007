"""How good the labels are that were found: thresholds, precision, recall, F1, confusion."""

from math import sqrt

import torch
from torch import Tensor


def standard_error(accuracy: float, num_examples: int) -> float:
    """Of an accuracy that was found on so many examples, binomial.

    Two right and two wrong answers are added (Agresti and Coull 1998), so that a perfect accuracy has one as well.

    Example:
        >>> round(standard_error(0.99, 500), 4), round(standard_error(1.0, 500), 4)
        (0.0052, 0.0028)
    """
    share = (accuracy * num_examples + 2) / (num_examples + 4)
    return sqrt(share * (1 - share) / (num_examples + 4))


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
