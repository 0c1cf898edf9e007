"""How two errors fall together while networks learn."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from torchcaps.viz.palette import COLOURS, MARKERS

STYLES = ("-", "--", ":")


class Course(NamedTuple):
    """One training, from first to last look.

    Attributes:
        name: of the network.
        across: errors on known ground, %.
        up: errors on new ground, %.
    """

    name: str
    across: Sequence[float]
    up: Sequence[float]


def courses(lines: Sequence[Course], *, across: str, up: str) -> Figure:
    """The error on new ground against that on known ground; the large mark is the end of a training.

    Networks are to be compared where they lie above each other: equally good on known ground.

    Args:
        lines: one for each network.
        across, up: what the axes show.
    """
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, line in enumerate(lines):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        axes.plot(line.across, line.up, style, color=colour, marker=marker, markersize=3, linewidth=1, alpha=0.8)
        axes.plot(
            line.across[-1:],
            line.up[-1:],
            style,
            color=colour,
            marker=marker,
            markersize=9,
            markeredgecolor="black",
            label=line.name,
        )
    axes.set(xlabel=across, ylabel=up, title="Errors while learning; large marks: the end")
    if all(min(line.across) > 0 for line in lines):
        axes.set_xscale("log")
    if all(min(line.up) > 0 for line in lines):
        axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
        axis.set_tick_params(which="both", labelsize=7)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    return figure
