"""How well a model withstands attacks: accuracy against epsilon, transfer to other models, and its gradients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.attacks.perturb import as_fractions, check_attackable, input_gradient, perturb
from torchcaps.models import Model


class Outcome(NamedTuple):
    """What an attack achieved at one epsilon.

    Attributes:
        epsilon: largest change of a pixel.
        accuracy: share of images that were still given their true class (targeted: mean over all targets).
        success: share of images that were given another class than their own; targeted: the target, as a mean over all
            targets of the images that do not belong to it.
    """

    epsilon: float
    accuracy: float
    success: float


class GradientStatistics(NamedTuple):
    """Whether a model hides its gradient. What resists attacks only because its gradient vanishes is not robust.

    Attributes:
        zero_share: of pixels whose gradient is exactly zero.
        zero_image_share: of images for which all are.
        magnitude: mean absolute gradient of a pixel.
    """

    zero_share: float
    zero_image_share: float
    magnitude: float


def sweep(
    model: Model,
    images: "np.ndarray | Tensor",
    labels: np.ndarray,
    *,
    epsilons: Sequence[float],
    targeted: bool = False,
    **options: Any,
) -> list[Outcome]:
    """An attack on a model at several epsilons, with its own gradient (white box).

    Args:
        model: takes images, one class each.
        images: raw pictures.
        labels: their true classes.
        epsilons: in pixel units; at 0 the images are as they were.
        targeted: towards each class in turn instead of away from the true one.
        **options: method, loss, seed and batch_size of `perturb`.

    Shapes:
        images: uint8, or floating point in [0, 1], (n, h, w) or (n, h, w, c)
        labels: (n,)
    """
    (outcomes,) = transfer(model, {"": model}, images, labels, epsilons=epsilons, targeted=targeted, **options).values()
    return outcomes


def transfer(
    source: Model,
    victims: Mapping[str, Model],
    images: "np.ndarray | Tensor",
    labels: np.ndarray,
    *,
    epsilons: Sequence[float],
    targeted: bool = False,
    **options: Any,
) -> dict[str, list[Outcome]]:
    """Images made with the gradient of one model, shown to others (black box).

    Args:
        source: whose gradient is used.
        victims: models with the same classes, by name.
        images, labels, epsilons, targeted, **options: see `sweep`.

    Returns:
        For each victim one outcome per epsilon.
    """
    for name, victim in victims.items():
        check_attackable(victim)
        if victim.num_classes != source.num_classes:
            raise ValueError(f"{name} has {victim.num_classes} classes, the model attacked first {source.num_classes}")
    labels = np.asarray(labels)
    found: dict[str, list[Outcome]] = {name: [] for name in victims}
    for epsilon in epsilons:
        tried: dict[str, list[tuple[float, float]]] = {name: [] for name in victims}
        for target in range(source.num_classes) if targeted else (None,):
            classes = labels if target is None else np.full_like(labels, target)
            changed = perturb(source, images, classes, epsilon=epsilon, targeted=targeted, **options)
            is_other = labels != target
            for name, victim in victims.items():
                answers = predictions(victim, changed)
                is_hit = answers != labels if target is None else answers == target
                hits = is_hit[is_other].mean() if is_other.any() else np.nan
                tried[name].append((float((answers == labels).mean()), float(hits)))
        for name, pairs in tried.items():
            accuracy, success = np.nanmean(np.array(pairs), axis=0)
            found[name].append(Outcome(float(epsilon), float(accuracy), float(success)))
    return found


@torch.inference_mode()
def predictions(model: Model, images: "np.ndarray | Tensor", *, batch_size: int = 128) -> np.ndarray:
    """The class given to each raw image: (n,)."""
    pixels, device, was_training = as_fractions(images), next(model.parameters()).device, model.training
    model.eval()
    answers = [
        model(model.preprocessing(pixels[begin : begin + batch_size]).to(device)).scores.argmax(-1).cpu()
        for begin in range(0, len(pixels), batch_size)
    ]
    model.train(was_training)
    return torch.cat(answers).numpy()


def gradient_statistics(
    model: Model,
    images: "np.ndarray | Tensor",
    labels: np.ndarray,
    *,
    loss: str = "cross_entropy",
    batch_size: int = 128,
) -> GradientStatistics:
    """How many gradients of the loss with respect to raw pixels are exactly zero, and how large they are.

    The ratio of two models' magnitudes says how much weaker the gradient of one is.

    Shapes:
        images: uint8, or floating point in [0, 1], (n, h, w) or (n, h, w, c)
        labels: (n,)
    """
    check_attackable(model)
    pixels, classes = as_fractions(images), torch.as_tensor(labels)
    gradients = torch.cat(
        [
            input_gradient(model, pixels[begin : begin + batch_size], classes[begin : begin + batch_size], loss=loss)
            for begin in range(0, len(pixels), batch_size)
        ]
    ).flatten(1)
    is_zero = gradients == 0
    return GradientStatistics(
        zero_share=float(is_zero.double().mean()),
        zero_image_share=float(is_zero.all(1).double().mean()),
        magnitude=float(gradients.abs().double().mean()),
    )
