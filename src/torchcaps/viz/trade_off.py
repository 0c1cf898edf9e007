"""What is reached against what it costs."""

from collections.abc import Sequence
from itertools import cycle
from textwrap import fill
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.figure import Figure

COLUMNS = 3
SIGNS = "osD^vP*X<>hp8"


class Mark(NamedTuple):
    """One network in one panel.

    Attributes:
        group: the panel.
        name: the same network has the same sign in all panels.
        seconds: what it costs.
        accuracy: in percent, mean over seeds.
        deviation: between seeds; None for one seed.
    """

    group: str
    name: str
    seconds: float
    accuracy: float
    deviation: float | None = None


def trade_off(marks: Sequence[Mark], *, title: str, caption: str) -> Figure:
    """Accuracy against seconds, a panel for each group; up and to the left is better.

    Args:
        marks: in the order of the legend.
        title: of the page.
        caption: below the picture: sources, data, conditions.
    """
    groups, names = list(dict.fromkeys(mark.group for mark in marks)), list(dict.fromkeys(mark.name for mark in marks))
    looks = {name: (sign, colormaps["tab20"](at % 20)) for at, (name, sign) in enumerate(zip(names, cycle(SIGNS)))}
    columns = min(COLUMNS, max(1, len(groups)))
    num_rows = -(-max(1, len(groups)) // columns)
    caption = fill(caption, 40 * columns)
    height = 1.6 + 3.2 * num_rows + 0.14 * caption.count("\n")
    figure = Figure(figsize=(4.2 * columns + 0.4, height), layout="constrained")
    panels = figure.subplots(num_rows, columns, squeeze=False).ravel()
    for panel in panels[len(groups) :]:
        panel.axis("off")
    for panel, group in zip(panels, groups):
        for mark in (mark for mark in marks if mark.group == group):
            sign, colour = looks[mark.name]
            panel.errorbar(
                1e3 * mark.seconds, mark.accuracy, mark.deviation, fmt=sign, color=colour, markeredgecolor="black",
                markersize=8, elinewidth=1, capsize=2,
            )  # fmt: skip
        panel.set_xscale("log")
        for formatted in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
            formatted("{x:g}")
        panel.set_title(group, fontsize=10)
        panel.set_xlabel("CPU milliseconds of a training step", fontsize=8)
        panel.set_ylabel("right, %", fontsize=8)
        panel.tick_params(labelsize=8, which="both")
        panel.grid(True, alpha=0.3)
    if names:
        handles = [
            figure.axes[0].plot([], [], sign, color=colour, markeredgecolor="black", label=name)[0]
            for name, (sign, colour) in looks.items()
        ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(5, len(names)),
            fontsize=8,
            title=caption,
            title_fontsize=8,
        )
    figure.suptitle(title, fontsize=12)
    return figure
