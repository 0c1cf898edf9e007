"""How well linear maps of poses tell how things look, class by class, beside the features of another network."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_count
from torchcaps.inspection.properties import PROPERTIES, UNITS, image_properties
from torchcaps.models import Model

NUM_FOLDS = 5
BATCH_SIZE = 250
# What varies less than this among the things of a class is hardly there to be told: centred digits have no place.
LEAST_DEVIATIONS = {
    "slant": 0.02,
    "elongation": 0.01,
    "thickness": 0.1,
    "width": 0.5,
    "height": 0.5,
    "row": 0.5,
    "column": 0.5,
    "holes": 1.0,
}
RIDGE = 1e-6  # of the largest variance: features that hang on each other do no harm


@dataclass(frozen=True, kw_only=True)
class PoseProbes:
    """What linear maps tell of the properties of the things of each class.

    Attributes:
        labels: names of the J classes.
        r_squared: (J, 8) share of the variance of each property that the map tells of images it was not fitted to; NaN
            where the property hardly varies.
        num_entries: of what the maps read.
    """

    labels: tuple[str, ...]
    r_squared: np.ndarray
    num_entries: int

    def mean(self, *properties: str) -> float:
        """Over the classes in which they vary, and over the given properties (all without any)."""
        columns = [PROPERTIES.index(name) for name in properties or PROPERTIES]
        found = self.r_squared[:, columns]
        return float(found[np.isfinite(found)].mean()) if np.isfinite(found).any() else float("nan")

    def lines(self) -> list[str]:
        """Means over classes as text, a line for each property that varies."""
        means = {name: self.mean(name) for name in PROPERTIES}
        return [f"{name:10s} R² {mean:.3f}  ({UNITS[name]})" for name, mean in means.items() if np.isfinite(mean)]


def probe_poses(
    model: Model, images: np.ndarray, labels: np.ndarray, *, num_entries: int | None = None, num_folds: int = NUM_FOLDS
) -> PoseProbes:
    """Fit and test linear maps from the pose of an image's class, or from the features of a CNN, to its properties.

    Each image is told by a map that was fitted to images of its class in the other folds.

    Args:
        model: a capsule network, or one with `last_features`, which are read instead of poses.
        images: raw, uint8 (n, h, w[, c]); the first channel is measured, as the model sees it.
        labels: (n,) true classes.
        num_entries: read this many principal directions of the features within each class; None reads them all.
        num_folds: of the images of each class.
    """
    features_nD, properties_nP = read_features(model, images, labels), seen_properties(model, images)
    classes = range(model.num_classes)
    found = [
        linear_r_squared(
            features_nD[labels == index], properties_nP[labels == index], num_entries=num_entries, num_folds=num_folds
        )
        for index in classes
    ]
    size = features_nD.shape[1] if num_entries is None else min(num_entries, features_nD.shape[1])
    return PoseProbes(labels=model.labels, r_squared=np.array(found), num_entries=size)


def seen_properties(model: Model, images: np.ndarray) -> np.ndarray:
    """Properties of raw images as the model sees them: (n, 8)."""
    parts = [images[start : start + BATCH_SIZE] for start in range(0, len(images), BATCH_SIZE)]
    return np.concatenate([image_properties(model.preprocessing(part)[:, 0].numpy()) for part in parts])


@torch.inference_mode()
def read_features(model: Model, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The pose that the true class of each image has, or what the last layer of a network without poses reads.

    Shapes:
        images: uint8 (n, h, w[, c]); labels: (n,) -> (n, D)
    """
    model.eval()
    device = next(model.parameters()).device
    kept: list[Tensor] = []
    for start in range(0, len(images), BATCH_SIZE):
        part = slice(start, start + BATCH_SIZE)
        batch = model.preprocessing(images[part]).to(device)
        kept.append(poses_of(model, batch, torch.as_tensor(labels[part]).to(device)).cpu())
    return torch.cat(kept).double().numpy()


def poses_of(model: Model, batch: Tensor, classes: Tensor) -> Tensor:
    """Poses of the given classes (B, D) for prepared images, or the features that the last linear layer reads."""
    if type(model).last_features is not Model.last_features:
        return model.last_features(batch).flatten(1)
    poses_BJD = model(batch).poses
    if poses_BJD is None:
        raise ValueError(f"{model.name} has no poses of classes, and does not implement last_features")
    return poses_BJD[torch.arange(len(batch), device=batch.device), classes]


def linear_r_squared(
    features: np.ndarray,
    targets: np.ndarray,
    *,
    num_entries: int | None = None,
    num_folds: int = NUM_FOLDS,
    least_deviations: np.ndarray | None = None,
) -> np.ndarray:
    """Share of the variance of each target that linear maps tell of rows they were not fitted to; NaN where it is too
    small.

    Shapes:
        features: (n, D); targets: (n, P); least_deviations: (P,), by default of PROPERTIES -> (P,)

    Example:
        >>> features = np.random.default_rng(0).normal(size=(200, 3))
        >>> linear_r_squared(features, features[:, :1] - features[:, 1:2], least_deviations=np.zeros(1)).round(3)
        array([1.])
    """
    check_count("num_folds", num_folds, least=2)
    if least_deviations is None:
        least_deviations = np.array([LEAST_DEVIATIONS[name] for name in PROPERTIES])
    if len(features) < num_folds:
        return np.full(targets.shape[1], np.nan)
    fold = np.random.default_rng(0).permutation(len(features)) % num_folds
    told = np.empty_like(targets)
    for number in range(num_folds):
        is_fitted = fold != number
        told[~is_fitted] = fit_map(features[is_fitted], targets[is_fitted], num_entries)(features[~is_fitted])
    deviations = targets.std(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        r_squared = 1 - ((targets - told) ** 2).mean(0) / deviations**2
    return np.where(deviations > least_deviations, r_squared, np.nan)


def varying(properties: np.ndarray) -> np.ndarray:
    """Standard deviation of each property among the things of a class, NaN where it hardly varies: (n, 8) -> (8,)."""
    deviations = properties.std(0)
    return np.where(deviations > [LEAST_DEVIATIONS[name] for name in PROPERTIES], deviations, np.nan)


def fit_map(features: np.ndarray, targets: np.ndarray, num_entries: int | None = None):
    """The linear map with least squared error, perhaps from the first principal directions alone."""
    centre, level = features.mean(0), targets.mean(0)
    axes = principal_axes(features - centre, num_entries)[0].T if num_entries is not None else np.eye(features.shape[1])
    read = (features - centre) @ axes
    gram = read.T @ read
    penalty = RIDGE * max(float(np.trace(gram)) / len(gram), 1e-30)
    weight = np.linalg.solve(gram + penalty * np.eye(len(gram)), read.T @ (targets - level))
    return lambda rows: (rows - centre) @ axes @ weight + level


def principal_axes(centred: np.ndarray, num_axes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Unit directions in which rows vary most (num_axes, D), and their standard deviations, largest first."""
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    return axes[:num_axes], sizes[:num_axes] / max(len(centred), 1) ** 0.5
