"""Attacks within a distance of each pixel: one step along the sign of the gradient, many steps, from a random start.

Images are changed where they come from, as raw pixels in [0, 1], and the gradient goes through the whole preprocessing,
so that epsilon means the same for a model that standardises and crops as for one that does not.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.checks import check_choice
from torchcaps.inputs.images import Preprocessing
from torchcaps.losses import margin_loss, spread_loss
from torchcaps.models import Model
from torchcaps.tasks import OneLabel

LOSSES = ("cross_entropy", "own")
SPREAD_MARGIN = 0.9  # of the spread loss at the end of training


@dataclass(frozen=True, kw_only=True)
class Method:
    r"""Steps along the sign of the gradient of the loss L, each followed by a projection onto what is allowed.

    .. math:: x \leftarrow \Pi\left( x + \text{step} \cdot \text{sign} \nabla_x L(x, y) \right)

    The projection :math:`\Pi` brings each pixel back to within epsilon of the original, and into [0, 1].

    Attributes:
        num_steps: how many.
        relative_step: size of a step as a share of epsilon.
        random_start: begin at a random point within epsilon instead of the image itself.
    """

    num_steps: int
    relative_step: float
    random_start: bool = False


METHODS = {
    # Goodfellow, Shlens, Szegedy 2015: one step.
    "fgsm": Method(num_steps=1, relative_step=1.0),
    # Kurakin, Goodfellow, Bengio 2017: the same in small steps.
    "bim": Method(num_steps=10, relative_step=0.2),
    # Madry et al. 2018; on MNIST 40 steps of 0.01 within 0.3.
    "pgd": Method(num_steps=40, relative_step=1 / 30, random_start=True),
}


def perturb(
    model: Model,
    images: "np.ndarray | Tensor",
    classes: "np.ndarray | Tensor",
    *,
    epsilon: float,
    method: str | Method = "fgsm",
    targeted: bool = False,
    loss: str = "cross_entropy",
    seed: int = 0,
    batch_size: int = 128,
) -> np.ndarray:
    """Images that a model shall take for something else, each pixel within epsilon of the original and in [0, 1].

    Args:
        model: takes images, one class each; its weights and its mode are left as they are.
        images: raw pictures.
        classes: the true class of each image; targeted: the class it shall be taken for.
        epsilon: largest change of a pixel, where 1 is the whole range from black to white.
        method: name of one of METHODS, or a Method.
        targeted: go towards `classes` instead of away from them.
        loss: "cross_entropy" of the model's probabilities, or "own", the default loss of the model; margin and spread
            loss have no gradient at all where the answer is right by more than the margin.
        seed: of random starts.
        batch_size: images at a time.

    Shapes:
        images: uint8, or floating point in [0, 1], (n, h, w) or (n, h, w, c) -> float32 in [0, 1] of the same shape
        classes: (n,)

    Example:
        >>> from torchcaps.models import create_model
        >>> model = create_model("cnn-small", image_shape=(1, 28, 28), num_classes=10)
        >>> images = np.full((2, 28, 28), 128, np.uint8)
        >>> changed = perturb(model, images, np.array([3, 5]), epsilon=0.1)
        >>> changed.shape, bool(abs(changed - images / 255).max() < 0.1001)
        ((2, 28, 28), True)
    """
    check_attackable(model)
    if isinstance(method, str):
        method = METHODS[check_choice("method", method, METHODS)]
    if not 0 <= epsilon <= 1:  # NaN fails too
        raise ValueError(f"epsilon must lie in [0, 1], the range of a pixel, got {epsilon}")
    originals, classes = as_fractions(images), torch.as_tensor(classes)
    if classes.shape != originals.shape[:1]:
        raise ValueError(f"there are {len(originals)} images but classes of shape {tuple(classes.shape)}")
    start = originals
    if method.random_start:
        generator = torch.Generator().manual_seed(seed)  # all at once: the size of batches must not change them
        noise = torch.rand(originals.shape, generator=generator) * 2 - 1
        start = (originals + epsilon * noise).clamp(0, 1)
    changed = []
    for begin in range(0, len(originals), batch_size):
        part = slice(begin, begin + batch_size)
        lowest, highest = (originals[part] - epsilon).clamp_min(0), (originals[part] + epsilon).clamp_max(1)
        now = start[part]
        for _ in range(method.num_steps):
            gradient = input_gradient(model, now, classes[part], loss=loss)
            step = (-1 if targeted else 1) * method.relative_step * epsilon
            now = (now + step * gradient.sign()).clamp(lowest, highest)
        changed.append(now)
    return torch.cat(changed).numpy() if changed else originals.numpy()


def input_gradient(model: Model, images: Tensor, classes: Tensor, *, loss: str = "cross_entropy") -> Tensor:
    """The gradient of each image's loss with respect to its raw pixels, through the preprocessing.

    Args:
        model: is evaluated as in prediction (no dropout, running means of batch norm).
        images: one batch.
        classes: of each image.
        loss: see `perturb`.

    Shapes:
        images: float32 in [0, 1], (n, h, w) or (n, h, w, c) -> the same
        classes: (n,)
    """
    check_choice("loss", loss, LOSSES)
    device, was_training = next(model.parameters()).device, model.training
    pixels = images.detach().clone().requires_grad_()
    model.eval()
    try:
        with torch.enable_grad():
            scores = model(model.preprocessing(pixels).to(device)).scores.float()
            total = losses(model, scores, classes.to(device), loss).sum()
            (gradient,) = torch.autograd.grad(total, pixels)
    finally:
        model.train(was_training)
    return gradient


def losses(model: Model, scores: Tensor, classes: Tensor, loss: str) -> Tensor:
    """What an attack changes, for each image: (n,).

    The cross-entropy of activations a is -log(a_t / sum_k a_k).
    """
    if loss == "own" and model.default_loss == "margin":
        return margin_loss(scores, classes, reduction="none")
    if loss == "own" and model.default_loss == "spread":
        return spread_loss(scores, classes, SPREAD_MARGIN, reduction="none")
    logits = scores.clamp_min(math.exp(-80)).log() if model.gives_activations else scores
    return functional.cross_entropy(logits, classes, reduction="none")


def as_fractions(images: "np.ndarray | Tensor") -> Tensor:
    """Raw images as float32 between 0 and 1, in the layout they came in."""
    tensor = torch.as_tensor(np.ascontiguousarray(images) if isinstance(images, np.ndarray) else images).detach().cpu()
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.float32) / 255
    if not tensor.is_floating_point() or not bool(((tensor >= 0) & (tensor <= 1)).all()):
        raise ValueError(f"images must be uint8 or floating point between 0 and 1, got {tensor.dtype}")
    return tensor.to(torch.float32)


def why_not_attack(model: Model) -> str | None:
    """Why a model cannot be attacked: it must take images and give each one class."""
    if not isinstance(model.preprocessing, Preprocessing):
        return f"attacks change pixels, but {model.name} takes {model.preprocessing.kind}s"
    if not isinstance(model.task, OneLabel):
        return f"attacks are on models that give one class to an image, but this {model.name} does not"
    return None


def check_attackable(model: Model) -> None:
    """Raise if a model cannot be attacked."""
    if (reason := why_not_attack(model)) is not None:
        raise ValueError(reason)
