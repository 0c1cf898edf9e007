"""What training minimises: the loss of each example, as a function of the progress of training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.losses import (
    activation_cross_entropy,
    margin_loss,
    reconstruction_loss,
    softmax_cross_entropy,
    spread_loss,
)
from torchcaps.models import Model, ModelOutput
from torchcaps.schedules import spread_margin
from torchcaps.training.config import TrainingConfig

Objective = Callable[[ModelOutput, Tensor, Tensor, float], Tensor]


def make_objective(model: Model, config: TrainingConfig, class_weights: Tensor | None = None) -> Objective:
    """(output, images, targets, progress in [0, 1]) -> loss of each example (B,)."""
    name = model.default_loss if config.loss == "auto" else config.loss
    weight = model.reconstruction_weight if config.reconstruction_weight is None else config.reconstruction_weight
    if name in ("spread", "softmax_cross_entropy") and model.multi_label:
        raise ValueError(f"the loss {name} has one true class per example; train multi-label models with loss='margin'")
    if not model.gives_activations and name != "cross_entropy":
        raise ValueError(f"{model.name} gives logits and trains with cross_entropy, not with {name}")

    def classification(scores: Tensor, targets: Tensor, progress: float) -> Tensor:
        if name == "margin":
            return margin_loss(scores, targets, reduction="none")
        if name == "spread":
            start, end = config.spread_margin
            margin = spread_margin(progress, 1.0, start=start, end=end)
            return spread_loss(scores, targets, margin, reduction="none")
        if name == "softmax_cross_entropy":
            return softmax_cross_entropy(scores, targets, reduction="none")
        if model.multi_label:
            logits = scores if not model.gives_activations else scores.clamp(1e-6, 1 - 1e-6).logit()
            losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
            return losses.sum(-1)
        if model.gives_activations:
            return activation_cross_entropy(scores, targets, reduction="none")
        return functional.cross_entropy(scores, targets, reduction="none")

    def objective(output: ModelOutput, images: Tensor, targets: Tensor, progress: float) -> Tensor:
        precise = torch.promote_types(output.scores.dtype, torch.float32)
        loss = classification(output.scores.to(precise), targets, progress)
        if class_weights is not None:
            loss = loss * example_weights(class_weights, targets)
        if output.reconstruction is None:
            return loss
        return loss + reconstruction_loss(output.reconstruction.float(), images, weight=weight, reduction="none")

    return objective


def example_weights(class_weights: Tensor, targets: Tensor) -> Tensor:
    """What an example counts, (B,): the weight of its class, or the mean weight of its classes (1 without any).

    Not the capsule of a class among the capsules: then a rare class would be pushed down as often as before.
    """
    if targets.dim() == 1:
        return class_weights[targets]
    there = targets.to(class_weights.dtype)
    return torch.where(there.any(1), there @ class_weights / there.sum(1).clamp_min(1), 1.0)


def class_weights(
    weights: str | Sequence[float] | None, read_targets: Callable[[], Tensor], num_classes: int
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
    targets = read_targets()
    counts = targets.sum(0) if targets.dim() == 2 else torch.bincount(targets, minlength=num_classes)
    counts = counts.float()
    return torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp_min(1)), 1.0)
