"""Strokes drawn with known slant, thickness, place and hole, so that what is measured can be compared."""

import numpy as np

FINE = 8  # samples per pixel and side


def grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the samples, in pixels; the centre of the first pixel is 0."""
    rows, columns = (np.mgrid[: size * FINE, : size * FINE] + 0.5) / FINE - 0.5
    return rows, columns


def seen(inside: np.ndarray) -> np.ndarray:
    """Share of each pixel that is covered."""
    size = len(inside) // FINE
    return inside.reshape(size, FINE, size, FINE).mean((1, 3))


def stripe(*, slant: float = 0.0, thickness: float = 3.0, height: float = 20.0, size: int = 40, row=None, column=None):
    """An upright stroke; `slant` is how far it leans to the right per pixel up, `thickness` is across the stroke."""
    middle = (size - 1) / 2
    rows, columns = grid(size)
    down = rows - (middle if row is None else row)
    beside = columns - (middle if column is None else column) + slant * down
    return seen((np.abs(beside) <= thickness / 2 * np.hypot(1, slant)) & (np.abs(down) <= height / 2))


def ring(*, radius: float = 8.0, thickness: float = 3.0, slant: float = 0.0, size: int = 40):
    """A ring whose middle line has this radius, sheared by the slant."""
    middle = (size - 1) / 2
    rows, columns = grid(size)
    down = rows - middle
    distance = np.hypot(down, columns - middle + slant * down)
    return seen(np.abs(distance - radius) <= thickness / 2)
