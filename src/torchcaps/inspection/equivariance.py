"""How poses follow when an image is moved, turned, scaled or sheared step by step: along a straight line, and whether
the same one for all images."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.inspection.probes import BATCH_SIZE, poses_of, principal_axes, read_features
from torchcaps.models import Model

# Name -> the largest change to either side, in pixels, degrees, shares.
TRANSFORMATIONS = {"right": 2.0, "down": 2.0, "turned": 15.0, "scaled": 0.15, "sheared": 0.2}
NUM_STEPS = 9
NUM_PAIRS = 4000  # of images whose lines are compared


@dataclass(frozen=True, kw_only=True)
class Followed:
    """How the poses of images follow one transformation.

    Attributes:
        line: mean share of the movement of a pose that lies on the best straight line through it; 1 is straight.
        even: mean share that a line passed at an even pace explains.
        angle: mean angle in degrees between the lines of two images of one class, each from the least to the most
            transformed; 90 in many dimensions if they have nothing in common.
    """

    line: float
    even: float
    angle: float


def transformed(images: Tensor, name: str, amount: float) -> Tensor:
    """Prepared images after one transformation about their centre; beyond the edge an image goes on as it ends.

    Args:
        images: (B, C, H, W).
        name: "right" and "down" in pixels, "turned" in degrees against the clock, "scaled" by 1 + amount, "sheared" to
            the right by this many pixels per pixel up.
        amount: how much.
    """
    height, width = images.shape[2:]
    forward = np.eye(3)  # of points (x to the right, y down, 1), in pixels from the centre
    if name == "right":
        forward[0, 2] = amount
    elif name == "down":
        forward[1, 2] = amount
    elif name == "turned":
        angle = np.radians(amount)
        forward[:2, :2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    elif name == "scaled":
        forward[0, 0] = forward[1, 1] = 1 + amount
    elif name == "sheared":
        forward[0, 1] = -amount
    else:
        raise ValueError(f"a transformation is one of {', '.join(TRANSFORMATIONS)}, got {name!r}")
    pixels = np.diag([width / 2, height / 2, 1.0])  # of what affine_grid counts in
    back = np.linalg.inv(pixels) @ np.linalg.inv(forward) @ pixels
    theta = torch.as_tensor(back[:2], dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def follow(
    model: Model,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    num_entries: int | None = None,
    num_steps: int = NUM_STEPS,
    fitted: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, Followed]:
    """How the poses of the true classes (or the features of a CNN) follow each transformation.

    Args:
        model: whose poses.
        images: raw, uint8 (n, h, w[, c]).
        labels: (n,) true classes.
        num_entries: of features, keep this many principal directions within each class, as `fitted` has them.
        num_steps: of each transformation, from one side to the other.
        fitted: raw images and labels that give the principal directions; by default those that are followed.
    """
    read = _reader(model, labels, num_entries, fitted or (images, labels))
    return {
        name: straightness(read(images, name, np.linspace(-most, most, num_steps)), labels)
        for name, most in TRANSFORMATIONS.items()
    }


def _reader(
    model: Model, labels: np.ndarray, num_entries: int | None, fitted: tuple[np.ndarray, np.ndarray]
) -> Callable[[np.ndarray, str, np.ndarray], np.ndarray]:
    """(images, transformation, amounts) -> poses (n, S, D)."""
    axes: dict[int, np.ndarray] = {}
    if num_entries is not None:
        features = read_features(model, *fitted)
        for index in np.unique(labels).tolist():
            own = features[fitted[1] == index]
            axes[index] = principal_axes(own - own.mean(0), num_entries)[0].T

    @torch.inference_mode()
    def read(images: np.ndarray, name: str, amounts: np.ndarray) -> np.ndarray:
        model.eval()
        device, found = next(model.parameters()).device, []
        for start in range(0, len(images), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            batch, classes = model.preprocessing(images[part]).to(device), torch.as_tensor(labels[part]).to(device)
            steps = [poses_of(model, transformed(batch, name, amount), classes).cpu() for amount in amounts.tolist()]
            found.append(torch.stack(steps, dim=1))
        poses_nSD = torch.cat(found).double().numpy()
        if not axes:
            return poses_nSD
        return np.stack([pose @ axes[label] for pose, label in zip(poses_nSD, labels.tolist(), strict=True)])

    return read


def straightness(paths: np.ndarray, labels: np.ndarray) -> Followed:
    """How straight the paths of poses are, and how alike within a class.

    Shapes:
        paths: (n, S, D), steps at an even pace; labels: (n,)

    Example:
        >>> steps = np.linspace(-1, 1, 5)[:, None]
        >>> found = straightness(np.stack([steps * [1.0, 0.0], 2 + steps * [1.0, 1.0]]), np.array([0, 0]))
        >>> round(found.line, 6), round(found.angle, 6)
        (1.0, 45.0)
    """
    centred = paths - paths.mean(1, keepdims=True)
    total = np.maximum((centred**2).sum((1, 2)), 1e-30)
    sizes = np.linalg.svd(centred, compute_uv=False)
    steps = np.linspace(-1, 1, paths.shape[1])
    speeds = np.einsum("s,nsd->nd", steps, centred) / (steps**2).sum()
    left = ((centred - steps[None, :, None] * speeds[:, None]) ** 2).sum((1, 2))
    return Followed(
        line=float((sizes[:, 0] ** 2 / total).mean()),
        even=float((1 - left / total).mean()),
        angle=_mean_angle(speeds, labels),
    )


def _mean_angle(directions: np.ndarray, labels: np.ndarray) -> float:
    """Between directions of two different images of one class, over pairs drawn at random."""
    unit = directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-30)
    random, angles = np.random.default_rng(0), []
    for index in np.unique(labels):
        own = unit[labels == index]
        first, second = random.integers(0, len(own), (2, max(1, NUM_PAIRS // len(np.unique(labels)))))
        differ = first != second
        cosines = (own[first[differ]] * own[second[differ]]).sum(1)
        angles.append(np.degrees(np.arccos(cosines.clip(-1, 1))))
    found = np.concatenate(angles)
    return float(found.mean()) if len(found) else float("nan")
