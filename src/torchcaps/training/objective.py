"""What training minimises: the loss of each example, as a function of the progress of training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.losses import margin_loss, reconstruction_loss, spread_loss
from torchcaps.models import Model, ModelOutput
from torchcaps.schedules import spread_margin
from torchcaps.training.config import TrainingConfig

Objective = Callable[[ModelOutput, Tensor, Tensor, float], Tensor]


def make_objective(model: Model, config: TrainingConfig, class_weights: Tensor | None = None) -> Objective:
    """(output, images, targets, progress in [0, 1]) -> loss of each example (B,)."""
    name = model.default_loss if config.loss == "auto" else config.loss
    if name == "spread" and model.multi_label:
        raise ValueError("the spread loss has one true class per image; train multi-label models with loss='margin'")
    if not model.gives_activations and name != "cross_entropy":
        raise ValueError(f"{model.name} gives logits and trains with cross_entropy, not with {name}")

    def classification(scores: Tensor, targets: Tensor, progress: float) -> Tensor:
        if name == "margin" and class_weights is not None and not model.multi_label:
            # what a weight is for: the examples of a class count more, not its capsule among the capsules
            return margin_loss(scores, targets, reduction="none") * class_weights[targets]
        if name == "margin":
            return margin_loss(scores, targets, class_weights=class_weights, reduction="none")
        if name == "spread":
            start, end = config.spread_margin
            margin = spread_margin(progress, 1.0, start=start, end=end)
            return spread_loss(scores, targets, margin, class_weights=class_weights, reduction="none")
        if model.multi_label:
            logits = scores if not model.gives_activations else scores.clamp(1e-6, 1 - 1e-6).logit()
            losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
            return (losses if class_weights is None else losses * class_weights).sum(-1)
        logits = scores if not model.gives_activations else scores.clamp_min(1e-7).log()
        weights = 1.0 if class_weights is None else class_weights[targets]
        return functional.cross_entropy(logits, targets, reduction="none") * weights

    def objective(output: ModelOutput, images: Tensor, targets: Tensor, progress: float) -> Tensor:
        loss = classification(output.scores.float(), targets, progress)
        if output.reconstruction is None:
            return loss
        return loss + reconstruction_loss(
            output.reconstruction.float(), images, weight=config.reconstruction_weight, reduction="none"
        )

    return objective


def class_weights(
    weights: str | Sequence[float] | None, read_targets: Callable[[], Tensor], num_classes: int
) -> Tensor | None:
    """The weight of each class, (J,): as given, or "balanced", the inverse of its frequency (1 on average).

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
    return counts.sum() / (num_classes * counts.clamp_min(1))
