"""What pictures drawn from poses are measured by: what is drawn without a network from the class and a few numbers."""

import numpy as np

from torchcaps.inspection.probes import principal_axes


def picture_errors(drawn: np.ndarray, pictures: np.ndarray) -> np.ndarray:
    """Squared difference summed over the pixels of each picture.

    Shapes:
        drawn, pictures: (n, ...), equal -> (n,)

    Example:
        >>> picture_errors(np.zeros((2, 3, 3)), np.ones((2, 3, 3)))
        array([9., 9.])
    """
    if drawn.shape != pictures.shape:
        raise ValueError(f"drawn and true pictures must have one shape, got {drawn.shape} and {pictures.shape}")
    return ((drawn - pictures) ** 2).reshape(len(drawn), -1).sum(1)


def class_means(fitted: np.ndarray, fitted_labels: np.ndarray, told: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean picture of the class of each picture: the best that can be drawn of a class alone.

    Shapes:
        fitted: (m, H, W); fitted_labels: (m,); told: (n, H, W); labels: (n,) -> (n, H, W)
    """
    return class_principal_pictures(fitted, fitted_labels, told, labels, num_directions=0)


def class_principal_pictures(
    fitted: np.ndarray, fitted_labels: np.ndarray, told: np.ndarray, labels: np.ndarray, *, num_directions: int
) -> np.ndarray:
    """Pictures cut down to the first principal directions of their class: what a linear code of that size can draw.

    Values are cut to [0, 1].

    Shapes:
        fitted: (m, H, W); fitted_labels: (m,); told: (n, H, W); labels: (n,) -> (n, H, W)
    """
    drawn = np.empty(told.shape, np.float64)
    for index in np.unique(labels):
        rows = fitted[fitted_labels == index].reshape(-1, told[0].size)
        if not len(rows):
            raise ValueError(f"no fitted picture has class {index}; give some of every class")
        mean, is_told = rows.mean(0), labels == index
        axes = principal_axes(rows - mean, num_directions)[0] if num_directions else np.zeros((0, len(mean)))
        centred = told[is_told].reshape(is_told.sum(), -1) - mean
        drawn[is_told] = (mean + centred @ axes.T @ axes).clip(0, 1).reshape(-1, *told.shape[1:])
    return drawn
