"""Published figures and ours, side by side."""

from collections.abc import Sequence
from textwrap import fill
from typing import NamedTuple

from matplotlib.figure import Figure

OURS, PAPER = "tab:blue", "tab:orange"


class Bar(NamedTuple):
    """One line of the picture; lower is better.

    Attributes:
        group: heading above the first of several lines.
        name: what was measured of what.
        ours: mean over seeds, None if there is none yet.
        deviation: between seeds.
        published: None if there is none.
    """

    group: str
    name: str
    ours: float | None
    deviation: float
    published: float | None


def comparison(bars: Sequence[Bar], *, title: str, caption: str) -> Figure:
    """A bar with its deviation for each of our figures, a diamond for each published one.

    Args:
        bars: from top to bottom.
        title: of the page.
        caption: below the picture: sources, data, conditions.
    """
    places, headings, place = [], [], 0.0
    for number, bar in enumerate(bars):
        if bar.group and (number == 0 or bar.group != bars[number - 1].group):
            place += 0.6 if number else 0.0
            headings.append((place, bar.group))
            place += 1.0
        places.append(place)
        place += 1.0
    caption = fill(caption, 115)
    figure = Figure(figsize=(11, 1.5 + 0.26 * max(place, 2) + 0.18 * caption.count("\n")), layout="constrained")
    axes = figure.subplots()
    done = [(at, bar.ours, bar.deviation) for at, bar in zip(places, bars, strict=True) if bar.ours is not None]
    if done:
        at, widths, errors = zip(*done, strict=True)
        axes.barh(at, widths, 0.7, xerr=errors, color=OURS, ecolor="black", label="ours")
    published = [(at, bar.published) for at, bar in zip(places, bars, strict=True) if bar.published is not None]
    if published:
        at, values = zip(*published, strict=True)
        axes.plot(values, at, "D", color=PAPER, markeredgecolor="black", label="paper")
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=8)
    for at, heading in headings:
        axes.text(0, at, heading, transform=axes.get_yaxis_transform(), fontsize=9, fontweight="bold", va="center")
    axes.set_ylim(place, -1)
    axes.set_xlim(left=0)
    axes.grid(True, axis="x", alpha=0.3)
    if done or published:
        axes.legend(loc="best", fontsize=8)
    axes.set_title(title, fontsize=12)
    axes.set_xlabel(caption, fontsize=7.5, loc="left")
    return figure
