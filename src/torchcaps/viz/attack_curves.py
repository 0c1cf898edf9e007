"""How accuracy falls when images are attacked."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from torchcaps.viz.palette import COLOURS, MARKERS

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
QUANTILE = 1.96  # of the normal distribution, for 95 %


class AttackCurve(NamedTuple):
    """What is left of a model's accuracy.

    Attributes:
        name: of the model, and of the attack where several are compared.
        epsilons: largest changes of a pixel, rising; pixels lie between 0 and 1.
        accuracies: shares of images that are still recognised.
        num_images: n, on which they were measured.
    """

    name: str
    epsilons: Sequence[float]
    accuracies: Sequence[float]
    num_images: int


def attack_curves(curves: Sequence[AttackCurve], *, title: str) -> Figure:
    """Accuracy against epsilon of several models, with 95 % intervals of what n images can tell.

    Args:
        curves: at most five can be told apart.
        title: of the page: which attack on which data.
    """
    if not 1 <= len(curves) <= len(COLOURS):
        raise ValueError(f"between 1 and {len(COLOURS)} curves can be told apart, got {len(curves)}")
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for place, curve in enumerate(curves):
        low, high = interval(np.asarray(curve.accuracies, float), curve.num_images)
        colour, name = COLOURS[place], f"{curve.name} (n = {curve.num_images:,})"
        axes.fill_between(curve.epsilons, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            curve.epsilons,
            100 * np.asarray(curve.accuracies, float),
            color=colour,
            marker=MARKERS[place],
            linestyle=STYLES[place],
            label=name,
        )
    axes.set(xlabel="epsilon: largest change of a pixel (pixels from 0 to 1)", ylabel="accuracy, %", ylim=(0, 101))
    axes.set_xlim(left=0)
    axes.grid(True, alpha=0.25)
    axes.legend(title="shaded: 95 % interval")
    figure.suptitle(title, fontsize=12)
    return figure


def interval(share: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Wilson's interval of a share p that was measured on n examples.

    .. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4 n^2}}{1 + z^2 / n}
    """
    square = QUANTILE**2
    middle = share + square / (2 * num)
    half = QUANTILE * np.sqrt(share * (1 - share) / num + square / (4 * num**2))
    return (middle - half) / (1 + square / num), (middle + half) / (1 + square / num)
