"""The losses as modules, with their options as attributes."""

from typing import Any

from torch import Tensor, nn

from torchcaps.losses.functions import (
    Reduction,
    activation_cross_entropy,
    check_reduction,
    margin_loss,
    reconstruction_loss,
    softmax_cross_entropy,
    spread_loss,
)


class MarginLoss(nn.Module):
    """Module form of :func:`margin_loss`; the options are its own.

    Example:
        >>> import torch
        >>> MarginLoss(reduction="none")(torch.tensor([[0.9, 0.1]]), torch.tensor([0])).tolist()
        [0.0]
    """

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        positive_margin: float = 0.9,
        negative_margin: float = 0.1,
        negative_weight: float = 0.5,
        balanced: bool = False,
        class_weights: Tensor | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.negative_weight = negative_weight
        self.balanced = balanced
        self.register_buffer("class_weights", class_weights)
        self.reduction = check_reduction(reduction)

    def forward(self, activations: Tensor, targets: Tensor) -> Tensor:
        """See :func:`margin_loss`."""
        return margin_loss(
            activations,
            targets,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            negative_weight=self.negative_weight,
            balanced=self.balanced,
            class_weights=self.class_weights,
            reduction=self.reduction,
        )


class SpreadLoss(nn.Module):
    """Module form of :func:`spread_loss`; the margin, which changes during training, is given per call.

    Example:
        >>> import torch
        >>> SpreadLoss()(torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([0]), margin=0.5).item()
        0.0625
    """

    class_weights: Tensor | None

    def __init__(
        self, *, balanced: bool = False, class_weights: Tensor | None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.balanced = balanced
        self.register_buffer("class_weights", class_weights)
        self.reduction = check_reduction(reduction)

    def forward(self, activations: Tensor, targets: Tensor, margin: float | Tensor) -> Tensor:
        """See :func:`spread_loss`."""
        options = {"balanced": self.balanced, "class_weights": self.class_weights, "reduction": self.reduction}
        return spread_loss(activations, targets, margin, **options)


class ActivationCrossEntropy(nn.Module):
    """Module form of :func:`activation_cross_entropy`.

    Example:
        >>> import torch
        >>> round(ActivationCrossEntropy()(torch.zeros(1, 2), torch.tensor([1])).item(), 4)  # log 2
        0.6931
    """

    class_weights: Tensor | None

    def __init__(
        self, *, eps: float = 1e-7, class_weights: Tensor | None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("class_weights", class_weights)
        self.reduction = check_reduction(reduction)

    def forward(self, activations: Tensor, targets: Tensor) -> Tensor:
        """See :func:`activation_cross_entropy`."""
        return activation_cross_entropy(
            activations, targets, eps=self.eps, class_weights=self.class_weights, reduction=self.reduction
        )


class SoftmaxCrossEntropy(nn.Module):
    """Module form of :func:`softmax_cross_entropy`.

    Example:
        >>> import torch
        >>> round(SoftmaxCrossEntropy()(torch.zeros(1, 2), torch.tensor([1])).item(), 4)  # log 2
        0.6931
    """

    class_weights: Tensor | None

    def __init__(self, *, class_weights: Tensor | None = None, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.register_buffer("class_weights", class_weights)
        self.reduction = check_reduction(reduction)

    def forward(self, activations: Tensor, targets: Tensor) -> Tensor:
        """See :func:`softmax_cross_entropy`."""
        return softmax_cross_entropy(activations, targets, class_weights=self.class_weights, reduction=self.reduction)


class ReconstructionLoss(nn.Module):
    """Module form of :func:`reconstruction_loss`.

    Example:
        >>> import torch
        >>> round(ReconstructionLoss(reduction="sum")(torch.zeros(2, 784), torch.ones(2, 784)).item(), 4)
        0.784
    """

    def __init__(self, *, weight: float = 0.0005, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.weight = weight
        self.reduction = check_reduction(reduction)

    def forward(self, reconstructions: Tensor, images: Tensor) -> Tensor:
        """See :func:`reconstruction_loss`."""
        return reconstruction_loss(reconstructions, images, weight=self.weight, reduction=self.reduction)


class CombinedLoss(nn.Module):
    """Module form of :func:`combined_loss`: a classification module (MarginLoss) and a ReconstructionLoss.

    Example:
        >>> import torch
        >>> loss = CombinedLoss(SpreadLoss())
        >>> activations, targets = torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([0])
        >>> value = loss(activations, targets, torch.zeros(1, 10), torch.ones(1, 10), margin=0.5)
        >>> round(value.item(), 4)  # 0.25^2 + 0.0005 * 10
        0.0675
    """

    def __init__(
        self, classification: nn.Module | None = None, reconstruction: ReconstructionLoss | None = None
    ) -> None:
        super().__init__()
        self.classification = MarginLoss() if classification is None else classification
        self.reconstruction = ReconstructionLoss() if reconstruction is None else reconstruction
        reductions = [getattr(part, "reduction", None) for part in (self.classification, self.reconstruction)]
        if reductions[0] != reductions[1]:
            raise ValueError(
                f"CombinedLoss adds losses of one reduction, got {reductions[0]!r} and {reductions[1]!r}; "
                "give both modules the same one"
            )

    def forward(
        self, activations: Tensor, targets: Tensor, reconstructions: Tensor, images: Tensor, **options: Any
    ) -> Tensor:
        """See :func:`combined_loss`; the options (a spread loss's margin) go to the classification module."""
        loss: Tensor = self.classification(activations, targets, **options)
        return loss + self.reconstruction(reconstructions, images)
