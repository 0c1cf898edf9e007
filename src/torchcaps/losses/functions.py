"""The losses as functions."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from torchcaps.checks import check_choice, check_floating

Reduction = Literal["mean", "sum", "none"]

USUAL_NEGATIVES = 9  # classes that are not there, for which the losses of the papers were made


def margin_loss(
    activations: Tensor,
    targets: Tensor,
    *,
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    negative_weight: float = 0.5,
    balanced: bool = False,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Margin loss of Sabour, Frosst and Hinton (2017), for one or several classes per example.

    sum_k w_k [ T_k max(0, 0.9 - a_k)^2 + 0.5 (1 - T_k) max(0, a_k - 0.1)^2 ], both hinges squared.

    Args:
        activations: class activations a.
        targets: class indices, or a multi-hot T of any real dtype or bool.
        positive_margin: activation above which a present class costs nothing.
        negative_margin: activation below which an absent class costs nothing.
        negative_weight: weight of the absent classes.
        balanced: all absent classes together weigh as much as nine do, however many there are: times 9 / (J - 1).
        class_weights: w, one weight per class; the mean over the batch is not divided by it.
        reduction: "mean", "sum" or "none" over the batch.

    Shapes:
        activations (B, J); targets (B,) or (B, J); class_weights (J,); result () or (B,).

    Example:
        >>> import torch
        >>> loss = margin_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
        >>> round(loss.item(), 4)  # 0.4^2 + 0.5 * 0.4^2
        0.24
    """
    _check_activations("margin_loss", activations)
    _check_class_weights(class_weights, activations)
    if targets.ndim == 1:
        _check_indices("margin_loss", targets, activations)
        present_BJ = _one_hot(targets, activations)
    else:
        if targets.shape != activations.shape:
            raise ValueError(
                f"margin_loss: targets must be class indices of shape ({activations.shape[0]},) or multi-hot "
                f"of shape {tuple(activations.shape)}, got {tuple(targets.shape)}"
            )
        if targets.is_complex():
            raise TypeError(f"margin_loss: multi-hot targets must be real or bool, got {targets.dtype}")
        present_BJ = targets.to(activations.dtype)
    if balanced:
        negative_weight = negative_weight * _share_of_negatives(activations)
    too_low_BJ = torch.relu(positive_margin - activations).square()
    too_high_BJ = torch.relu(activations - negative_margin).square()
    loss_BJ = present_BJ * too_low_BJ + negative_weight * (1 - present_BJ) * too_high_BJ
    if class_weights is not None:
        loss_BJ = loss_BJ * class_weights
    return _reduce(loss_BJ.sum(1), reduction)


def spread_loss(
    activations: Tensor,
    targets: Tensor,
    margin: float | Tensor,
    *,
    balanced: bool = False,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Spread loss of Hinton, Sabour and Frosst (2018): w_t sum_{i != t} max(0, m - (a_t - a_i))^2.

    Args:
        activations: class activations a.
        targets: class indices t.
        balanced: the sum over the other classes times 9 / (J - 1), so that it does not grow with their number.
        margin: m, from :func:`torchcaps.schedules.spread_margin` as training goes on; 1 is the squared
            hinge. A tensor spares a compiled loss from compiling anew for another value.
        class_weights: w, one weight per class; the mean over the batch is not divided by it.
        reduction: "mean", "sum" or "none" over the batch.

    Shapes:
        activations (B, J); targets (B,); margin a number or (); class_weights (J,); result () or (B,).

    Example:
        >>> import torch
        >>> spread_loss(torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([0]), 0.5).item()  # 0.25^2 + 0
        0.0625
    """
    _check_activations("spread_loss", activations)
    _check_indices("spread_loss", targets, activations)
    _check_class_weights(class_weights, activations)
    if isinstance(margin, Tensor) and margin.ndim != 0:
        raise ValueError(
            f"spread_loss: margin must be a number or a tensor of shape (), got {tuple(margin.shape)}; "
            "one margin holds for the whole batch"
        )
    index_B1 = targets.long()[:, None]
    gap_BJ = activations.gather(1, index_B1) - activations
    loss_BJ = torch.relu(margin - gap_BJ).square() * (1 - _one_hot(targets, activations))
    loss_B = loss_BJ.sum(1) * _share_of_negatives(activations) if balanced else loss_BJ.sum(1)
    return _reduce(_weigh(loss_B, class_weights, index_B1), reduction)


def activation_cross_entropy(
    activations: Tensor,
    targets: Tensor,
    *,
    eps: float = 1e-7,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of activations taken as they are, not as logits: -w_t log(a_t / sum_k a_k).

    ``eps`` is added to every activation, so that activations of exactly 0 give finite values and gradients,
    and activations that are all 0 give log J.

    Args:
        activations: class activations a >= 0.
        targets: class indices t.
        eps: added to each activation; the gradient is at most 1 / eps. Give a larger one, 1e-3, for float16.
        class_weights: w, one weight per class; the mean over the batch is not divided by it.
        reduction: "mean", "sum" or "none" over the batch.

    Shapes:
        activations (B, J); targets (B,); class_weights (J,); result () or (B,).

    Example:
        >>> import torch
        >>> round(activation_cross_entropy(torch.tensor([[0.2, 0.2]]), torch.tensor([1])).item(), 4)  # log 2
        0.6931
    """
    _check_activations("activation_cross_entropy", activations)
    _check_indices("activation_cross_entropy", targets, activations)
    _check_class_weights(class_weights, activations)
    index_B1 = targets.long()[:, None]
    positive_BJ = activations + eps
    # One logarithm of the quotient: a difference of two loses digits in bfloat16.
    loss_B = -(positive_BJ.gather(1, index_B1).squeeze(1) / positive_BJ.sum(1)).log()
    return _reduce(_weigh(loss_B, class_weights, index_B1), reduction)


def softmax_cross_entropy(
    activations: Tensor,
    targets: Tensor,
    *,
    class_weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of activations taken as logits: -w_t log softmax(a)_t.

    Activations lie in [0, 1], so that this loss never comes to rest: with J classes it is at least
    log(1 + (J - 1) / e), and every example keeps pulling (Ribeiro, Leontidis, Kollias 2020 train with it).

    Args:
        activations: class activations a.
        targets: class indices t.
        class_weights: w, one weight per class; the mean over the batch is not divided by it.
        reduction: "mean", "sum" or "none" over the batch.

    Shapes:
        activations (B, J); targets (B,); class_weights (J,); result () or (B,).

    Example:
        >>> import torch
        >>> round(softmax_cross_entropy(torch.tensor([[0.0, 1.0]]), torch.tensor([1])).item(), 4)  # log(1 + 1 / e)
        0.3133
    """
    _check_activations("softmax_cross_entropy", activations)
    _check_indices("softmax_cross_entropy", targets, activations)
    _check_class_weights(class_weights, activations)
    index_B1 = targets.long()[:, None]
    loss_B = -activations.log_softmax(1).gather(1, index_B1).squeeze(1)
    return _reduce(_weigh(loss_B, class_weights, index_B1), reduction)


def reconstruction_loss(
    reconstructions: Tensor, images: Tensor, *, weight: float = 0.0005, reduction: Reduction = "mean"
) -> Tensor:
    """0.0005 times the sum (not the mean) of the squared pixel errors of each image (Sabour et al. 2017).

    Args:
        reconstructions: pixels from the decoder.
        images: pixels to reconstruct, in the same layout.
        weight: factor of the sum.
        reduction: "mean", "sum" or "none" over the batch.

    Shapes:
        reconstructions and images (B, ...), equal; result () or (B,).

    Example:
        >>> import torch
        >>> round(reconstruction_loss(torch.zeros(2, 784), torch.ones(2, 784)).item(), 4)  # 0.0005 * 784
        0.392
    """
    check_floating("reconstruction_loss: reconstructions", reconstructions)
    if images.dtype == torch.uint8:
        raise TypeError(
            "reconstruction_loss: images must be floating point, got torch.uint8; "
            "scale the pixels to [0, 1] with images.float() / 255"
        )
    check_floating("reconstruction_loss: images", images)
    if reconstructions.ndim < 2 or reconstructions.shape != images.shape:
        raise ValueError(
            "reconstruction_loss: reconstructions and images must have one shape (B, ...), got "
            f"{tuple(reconstructions.shape)} and {tuple(images.shape)}; "
            "images.flatten(1) fits flat reconstructions"
        )
    return _reduce(weight * (reconstructions - images).square().flatten(1).sum(1), reduction)


def combined_loss(
    activations: Tensor,
    targets: Tensor,
    reconstructions: Tensor,
    images: Tensor,
    *,
    classification: Callable[..., Tensor] = margin_loss,
    reconstruction_weight: float = 0.0005,
    reduction: Reduction = "mean",
    **classification_options: Any,
) -> Tensor:
    """A classification loss plus 0.0005 times the sum of squared pixel errors: the whole loss of CapsNet.

    Args:
        activations: class activations.
        targets: what the classification loss takes as targets.
        reconstructions: pixels from the decoder.
        images: pixels to reconstruct.
        classification: :func:`margin_loss`, :func:`spread_loss`, :func:`activation_cross_entropy`, or another
            function of activations, targets and ``reduction``.
        reconstruction_weight: factor of the sum of squared pixel errors.
        reduction: "mean", "sum" or "none" over the batch, for both parts.
        **classification_options: passed on to ``classification``, such as the ``margin`` of the spread loss.

    Shapes:
        activations (B, J); targets (B,) or (B, J); reconstructions and images (B, ...); result () or (B,).

    Example:
        >>> import torch
        >>> activations, targets = torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([0])
        >>> pixels, image = torch.zeros(1, 10), torch.ones(1, 10)
        >>> loss = combined_loss(activations, targets, pixels, image, classification=spread_loss, margin=0.5)
        >>> round(loss.item(), 4)  # 0.25^2 + 0.0005 * 10
        0.0675
    """
    loss = classification(activations, targets, reduction=reduction, **classification_options)
    return loss + reconstruction_loss(reconstructions, images, weight=reconstruction_weight, reduction=reduction)


def _share_of_negatives(activations_BJ: Tensor) -> float:
    """9 / (J - 1): 1 for ten classes."""
    return USUAL_NEGATIVES / max(1, activations_BJ.shape[1] - 1)


def _one_hot(targets_B: Tensor, activations_BJ: Tensor) -> Tensor:
    """Scatter, unlike a comparison with 0..J-1, raises on an index out of range."""
    return torch.zeros_like(activations_BJ).scatter(1, targets_B.long()[:, None], 1.0)


def _weigh(loss_B: Tensor, class_weights_J: Tensor | None, index_B1: Tensor) -> Tensor:
    return loss_B if class_weights_J is None else loss_B * class_weights_J[index_B1.squeeze(1)]


def _reduce(loss_B: Tensor, reduction: Reduction) -> Tensor:
    check_reduction(reduction)
    return loss_B if reduction == "none" else loss_B.sum() if reduction == "sum" else loss_B.mean()


def check_reduction(reduction: Reduction) -> Reduction:
    """The reduction, if it is one."""
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    return reduction


def _check_activations(loss: str, activations: Tensor) -> None:
    check_floating(f"{loss}: activations", activations)
    if activations.ndim != 2:
        raise ValueError(
            f"{loss}: activations must have shape (B, J), got {tuple(activations.shape)}; "
            "give the activations (vector capsules: the lengths), not the poses"
        )


def _check_indices(loss: str, targets: Tensor, activations: Tensor) -> None:
    if targets.shape != activations.shape[:1]:
        raise ValueError(
            f"{loss}: targets must be class indices of shape ({activations.shape[0]},), one per example, "
            f"got {tuple(targets.shape)}; targets.argmax(1) turns one-hot targets into indices"
        )
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(
            f"{loss}: class indices must be integers, got {targets.dtype}; convert them with targets.long()"
        )


def _check_class_weights(class_weights: Tensor | None, activations: Tensor) -> None:
    if class_weights is not None and class_weights.shape != activations.shape[1:]:
        raise ValueError(
            f"class_weights must have shape ({activations.shape[1]},), one per class, got {tuple(class_weights.shape)}"
        )
