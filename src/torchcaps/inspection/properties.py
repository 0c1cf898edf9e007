"""How a thing in an image looks, computed from its pixels alone: what poses are asked to tell."""

import math

import numpy as np

ENLARGED = 4  # times: the outline of a stroke lies between pixels
INSIDE = 0.5  # of the brightest pixel: what is brighter belongs to the thing
PROPERTIES = ("slant", "elongation", "thickness", "width", "height", "row", "column", "holes")
UNITS = {
    "slant": "pixels to the right per pixel up",
    "elongation": "0 round, 1 a line",
    "thickness": "pixels",
    "width": "pixels",
    "height": "pixels",
    "row": "pixels from the top",
    "column": "pixels from the left",
    "holes": "square pixels",
}


def image_properties(images: np.ndarray) -> np.ndarray:
    r"""Slant, elongation, thickness, width, height, place of the centre and size of holes of bright things on black.

    With :math:`\mu_{pq} = \sum I(x, y) (x - \bar x)^p (y - \bar y)^q / \sum I`, x to the right and y down:

    - slant is :math:`-\mu_{11} / \mu_{02}`, by which each row is moved to the right of the row below it;
    - elongation is :math:`1 - \sqrt{\lambda_2 / \lambda_1}` of the eigenvalues of the moments of second order;
    - row and column are :math:`\bar y` and :math:`\bar x`;

    of the outline at half of the greatest brightness, in an image enlarged four times:

    - thickness is four times the mean distance of what is inside from the outline (a stripe of width w has w / 4);
    - width and height are those of the upright box around it;
    - holes are dark places that it shuts in.

    A black image has no properties: they are NaN.

    Args:
        images: brightness, 0 is black.

    Shapes:
        images: (n, H, W) -> (n, 8), columns as in PROPERTIES

    Example:
        >>> bar = np.zeros((1, 20, 20))
        >>> bar[:, 4:16, 8:11] = 1
        >>> dict(zip(PROPERTIES, image_properties(bar)[0].round(1).tolist()))["width"]
        3.0
    """
    images = np.asarray(images, np.float64)
    if images.ndim != 3:
        raise ValueError(f"images must have shape (n, height, width), got {images.shape}; give one channel of each")
    if not np.isfinite(images).all():
        raise ValueError("images must be finite; some pixels are NaN or infinite")
    return np.array([_properties(np.clip(image, 0, None)) for image in images]).reshape(-1, len(PROPERTIES))


def _properties(image_HW: np.ndarray) -> list[float]:
    from scipy import ndimage  # slow to import, and every predictor imports this package

    if image_HW.max(initial=0.0) <= 0:
        return [math.nan] * len(PROPERTIES)
    slant, elongation, row, column = _moments(image_HW / image_HW.max())
    inside = ndimage.zoom(_with_border(image_HW), ENLARGED, order=1, grid_mode=True, mode="grid-constant")
    inside = inside > INSIDE * image_HW.max()
    rows, columns = inside.any(1).nonzero()[0], inside.any(0).nonzero()[0]
    # A pixel's centre is half a pixel nearer to the outline than the edge of the next one's centre is.
    distances = np.asarray(ndimage.distance_transform_edt(inside))[inside] - 0.5
    holes = ndimage.binary_fill_holes(inside).sum() - inside.sum()
    return [
        slant,
        elongation,
        4 * distances.mean() / ENLARGED,
        (columns[-1] - columns[0] + 1) / ENLARGED,
        (rows[-1] - rows[0] + 1) / ENLARGED,
        row,
        column,
        holes / ENLARGED**2,
    ]


def _moments(image_HW: np.ndarray) -> tuple[float, float, float, float]:
    """Slant, elongation, row and column of the centre."""
    mass = image_HW.sum()
    rows, columns = np.arange(image_HW.shape[0]), np.arange(image_HW.shape[1])
    by_row, by_column = image_HW.sum(1) / mass, image_HW.sum(0) / mass
    row, column = float(by_row @ rows), float(by_column @ columns)
    down, right = rows - row, columns - column
    mu_02, mu_20 = float(by_row @ down**2), float(by_column @ right**2)
    mu_11 = float(down @ image_HW @ right) / mass
    small, large = np.linalg.eigvalsh([[mu_20, mu_11], [mu_11, mu_02]]).clip(0)
    slant = -mu_11 / mu_02 if mu_02 > 0 else math.nan  # a single row has none
    elongation = 1 - math.sqrt(small / large) if large > 0 else 0.0
    return slant, elongation, row, column


def _with_border(image_HW: np.ndarray) -> np.ndarray:
    """What touches the edge ends there."""
    return np.pad(image_HW, 1)
