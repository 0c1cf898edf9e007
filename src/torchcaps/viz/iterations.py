"""What routing does when it goes on and on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from torchcaps.inspection import remaining_descent
from torchcaps.viz.palette import COLOURS, MARKERS


class Iterations(NamedTuple):
    """One routing, iteration by iteration.

    Attributes:
        name: of the routing.
        updates: how often the couplings were changed.
        polarisation: mean largest coupling of a child.
        objective: what the routing descends, mean over images.
    """

    name: str
    updates: Sequence[int]
    polarisation: Sequence[float]
    objective: Sequence[float]


def iteration_curves(lines: Sequence[Iterations], *, num_classes: int, title: str) -> Figure:
    """How one-sided couplings become (left), and what is left of the way that the objective descends (right).

    Args:
        lines: one for each routing.
        num_classes: J; uniform couplings are 1 / J.
        title: of the page: which votes.
    """
    figure = Figure(figsize=(11, 4.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, line in enumerate(lines):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "label": line.name}
        left.plot(line.updates, line.polarisation, **style)
        remaining = remaining_descent(line.objective)
        if remaining is not None:
            right.plot(line.updates, np.where(remaining > 0, remaining, np.nan), **style)
    left.axhline(1 / num_classes, color="black", linestyle=":", linewidth=1)
    left.text(0, 1 / num_classes, " uniform", va="bottom", fontsize=8)
    left.set(xlabel="updates of the couplings", ylabel="mean largest coupling of a child", ylim=(0, 1.02))
    right.set(xlabel="updates of the couplings", ylabel="share of the objective's descent still to come", yscale="log")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, alpha=0.25)
    left.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure
