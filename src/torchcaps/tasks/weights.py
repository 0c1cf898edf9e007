"""What the examples of a class count in the loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.tasks.task import ReadTargets


def example_weights(class_weights: Tensor, targets: Tensor) -> Tensor:
    """What an example counts, (B,): the weight of its class, or the mean weight of its classes (1 without any).

    Not the capsule of a class among the capsules: then a rare class would be pushed down as often as before.
    """
    if targets.dim() == 1:
        return class_weights[targets]
    there = targets.to(class_weights.dtype)
    return torch.where(there.any(1), there @ class_weights / there.sum(1).clamp_min(1), 1.0)


def class_weights(
    weights: str | Sequence[float] | None, read_targets: ReadTargets | None, num_classes: int
) -> Tensor | None:
    """The weight of each class, (J,): as given, or "balanced", the inverse of its frequency (1 on average).

    A class without examples weighs 1.

    Targets are read where they are counted alone: of some datasets that means to read every example.
    """
    if weights is None:
        return None
    if not isinstance(weights, str):
        if len(weights) != num_classes:
            raise ValueError(f"class_weights must have one weight for each of {num_classes} classes, got {weights}")
        return torch.tensor(weights, dtype=torch.float32)
    if read_targets is None:
        raise ValueError("balanced class weights are counted in the targets of the training examples; give them")
    targets = read_targets()
    counts = targets.sum(0) if targets.dim() == 2 else torch.bincount(targets, minlength=num_classes)
    counts = counts.float()
    return torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp_min(1)), 1.0)
