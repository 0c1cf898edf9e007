"""Votes in the plane, as a strip and as an animation, and how far they lie from where they meet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from torchcaps.inspection import ClassRouting, vote_plane
from torchcaps.viz.palette import COLOURS, MARKERS
from torchcaps.viz.report import to_picture

FRAMES_PER_STEP, HELD_FRAMES = 8, 5  # from one iteration to the next, and at each
AREA = 90.0  # points squared of the vote with the largest coupling
NUM_BINS = 30
# Left, bottom, width and height on the page of the animation, as shares of it.
IMAGE_BOX, BARS_BOX, VOTES_BOX = (0.1, 0.6, 0.17, 0.26), (0.12, 0.1, 0.14, 0.46), (0.38, 0.1, 0.6, 0.74)


def vote_strip(routed: ClassRouting, *, num_classes: int = 3, most: int = 200) -> Figure:
    """The votes for the most active classes in the plane, one panel per iteration.

    A vote stays where it is; its area tells its coupling. The large marks are the centres of the votes weighted with
    their couplings, and their lines the way they came: routing moves a centre to where votes agree.

    Args:
        routed: one image on its way into the classes.
        num_classes: how many classes, the most active ones.
        most: show this many children, those with the longest votes; the centres are those of all.
    """
    scene = Scene(routed, num_classes, most)
    num_steps = len(routed.couplings)
    figure = Figure(figsize=(max(5.4, 0.5 + 3.2 * num_steps), 4.3), layout="constrained")
    panels = figure.subplots(1, num_steps, sharex=True, sharey=True, squeeze=False)[0]
    for step, axes in enumerate(panels):
        scene.draw(axes, float(step))
        axes.set_ylabel(scene.axis_names[1] if step == 0 else "")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=num_classes)
    figure.suptitle(f"Votes (area: coupling) and their centres\n{routed.title}", fontsize=11)
    return figure


def vote_animation(routed: ClassRouting, *, num_classes: int = 3, most: int = 200) -> FuncAnimation:
    """`vote_strip` as a moving picture, beside the image and the activations of all classes.

    Between two iterations couplings, centres and activations go in a straight line; each iteration itself is held for
    a while. Save it with matplotlib's PillowWriter.
    """
    scene = Scene(routed, num_classes, most)
    last = len(routed.couplings) - 1
    times = [0.0] * HELD_FRAMES
    for step in range(last):
        times += (step + np.linspace(0, 1, FRAMES_PER_STEP + 1)[1:]).tolist()
        times += [step + 1.0] * HELD_FRAMES
    figure = Figure(figsize=(7.4, 4.8))  # margins by hand: to find them anew for every frame is slow
    FigureCanvasAgg(figure)
    image, bars, axes = figure.add_axes(IMAGE_BOX), figure.add_axes(BARS_BOX), figure.add_axes(VOTES_BOX)
    figure.suptitle(f"Votes (area: coupling) and their centres\n{routed.title}", fontsize=10)
    image.imshow(to_picture(routed.inputs), cmap="gray", vmin=0, vmax=1)
    image.set_axis_off()

    def draw(time: float) -> list[Any]:
        axes.clear()
        scene.draw(axes, time)
        axes.legend(loc="upper left", fontsize=8)
        bars.clear()
        draw_activations(bars, routed, routed.strongest[:num_classes], time)
        return []

    return FuncAnimation(figure, draw, frames=times, init_func=list, interval=100)  # milliseconds


def draw_activations(axes: Axes, routed: ClassRouting, shown: Sequence[int], time: float) -> None:
    """The activations of all classes at an iteration, counted from 0, or between two; those `shown` in colours."""
    step = min(int(time), len(routed.activations) - 1)
    after, part = min(step + 1, len(routed.activations) - 1), time - step
    activations = (1 - part) * routed.activations[step] + part * routed.activations[after]
    colours = ["0.7"] * len(activations)
    for place, index in enumerate(shown):
        colours[index] = COLOURS[place % len(COLOURS)]
    axes.barh(range(len(activations)), activations, color=colours, edgecolor="black", linewidth=0.5)
    axes.set_yticks(range(len(activations)), routed.labels, fontsize=8)
    axes.set(xlim=(0, 1), xlabel="activation", ylim=(len(activations) - 0.5, -0.5))


def vote_distances(routed: ClassRouting) -> Figure:
    """Histograms, weighted with couplings, of the distance of votes from the centre of their class.

    The winner is the filled histogram, all other classes together the line. Dynamic routing compares directions
    and prefers long votes, so that under it the winner's distances need not fall.

    Args:
        routed: one image on its way into the classes.
    """
    distances_SIJ = routed.distances()
    best = routed.strongest[0]
    others = np.arange(len(routed.labels)) != best
    edges = np.linspace(0, float(np.quantile(distances_SIJ, 0.995)) or 1.0, NUM_BINS + 1)
    num_steps = len(distances_SIJ)
    figure = Figure(figsize=(max(5.4, 0.5 + 3.2 * num_steps), 3.9), layout="constrained")
    panels = figure.subplots(1, num_steps, sharex=True, sharey=True, squeeze=False)[0]
    for axes, distances, coupling, number in zip(panels, distances_SIJ, routed.couplings, range(1, num_steps + 1)):
        shown = ((best, f"votes for {routed.labels[best]}"), (others, "votes for all other classes"))
        for (chosen, name), style in zip(
            shown, ({"alpha": 0.5}, {"histtype": "step", "linestyle": "--", "linewidth": 1.8}), strict=True
        ):
            values, weights = distances[:, chosen].ravel(), coupling[:, chosen].ravel()
            share = 100 * weights / max(weights.sum(), 1e-30)
            colour = COLOURS[1] if style.get("histtype") else COLOURS[0]
            axes.hist(values, edges, weights=share, color=colour, label=name, **style)
        axes.set(title=f"iteration {number}", xlabel="distance from the centre, pose units")
        axes.grid(True, alpha=0.25)
    panels[0].set_ylabel("share of the class's coupling, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"Distances of votes\n{routed.title}", fontsize=11)
    return figure


class Scene:
    """Votes and centres of some classes in the plane, as they are drawn."""

    def __init__(self, routed: ClassRouting, num_classes: int, most: int) -> None:
        plane = vote_plane(routed, routed.strongest[:num_classes], most)
        self.labels = [routed.labels[index] for index in plane.classes]
        self.votes_IJ2, self.centres_SJ2 = plane.votes, plane.centres
        self.areas_SIJ = AREA * plane.couplings / max(float(plane.couplings.max()), 1e-30)
        shares = enumerate(plane.shares, 1)
        self.axis_names = [f"direction {number} ({100 * share:.0f} % of variance)" for number, share in shares]

    def draw(self, axes: Axes, time: float) -> None:
        """The picture at an iteration, counted from 0, or between two."""
        step = min(int(time), len(self.areas_SIJ) - 1)
        after, part = min(step + 1, len(self.areas_SIJ) - 1), time - step
        area_IJ = (1 - part) * self.areas_SIJ[step] + part * self.areas_SIJ[after]
        centre_J2 = (1 - part) * self.centres_SJ2[step] + part * self.centres_SJ2[after]
        for place, label in enumerate(self.labels):
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            across, up = self.votes_IJ2[:, place].T
            axes.scatter(across, up, area_IJ[:, place], color=colour, marker=marker, alpha=0.45, linewidth=0)
            way = np.concatenate([self.centres_SJ2[: step + 1, place], centre_J2[place : place + 1]])
            axes.plot(*way.T, color="black", linewidth=1)
            axes.plot(
                *centre_J2[place],
                marker,
                color=colour,
                markersize=11,
                markeredgecolor="black",
                label=f"class {label}",
                linestyle="none",
            )
        axes.set(title=f"iteration {step + 1}", xlabel=self.axis_names[0], ylabel=self.axis_names[1])
        axes.grid(True, alpha=0.25)
