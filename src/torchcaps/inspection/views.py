"""From which side a toy is seen: azimuths as sine and cosine, which linear maps can tell."""

import numpy as np

from torchcaps.data import ImageSet

NUM_LIGHTINGS = 6


def view_factors(part: ImageSet) -> np.ndarray:
    """Sine and cosine of the azimuth, elevation, and for each of six lightings whether it is on: (n, 9).

    smallNORB numbers azimuths in tens of degrees.
    """
    azimuth = np.radians(10.0 * part.factors["azimuth"])
    lights = part.factors["lighting"][:, None] == np.arange(NUM_LIGHTINGS)
    return np.column_stack([np.sin(azimuth), np.cos(azimuth), part.factors["elevation"], lights]).astype(np.float64)


def azimuth_of(views: np.ndarray) -> np.ndarray:
    """The angle in degrees, 0 to 360, whose sine and cosine come first: (..., 2 or more) -> (...).

    Example:
        >>> azimuth_of(np.array([[0.0, 2.0], [-1.0, 0.0]]))
        array([  0., 270.])
    """
    return np.degrees(np.arctan2(views[..., 0], views[..., 1])) % 360


def degrees_between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How far two angles are apart, 0 to 180.

    Example:
        >>> degrees_between(np.array([350.0, 90.0]), np.array([10.0, 270.0]))
        array([ 20., 180.])
    """
    return np.abs((first - second + 180) % 360 - 180)
