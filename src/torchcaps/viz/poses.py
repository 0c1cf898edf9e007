"""What poses know, as pictures: how well they tell properties of things, and what their directions change."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchcaps.inspection import PROPERTIES, Direction, PoseProbes, Sweeps
from torchcaps.viz.report import to_picture

KINDS = {"told": "directions of properties", "principal": "principal directions", "entries": "entries"}


def probe_page(probes: PoseProbes, rival: PoseProbes | None = None, *, name: str, rival_name: str = "") -> Figure:
    """Share of the variance of each property that linear maps tell, class by class; perhaps beside another network's.

    Args:
        probes: of poses.
        rival: of the features of another network.
        name, rival_name: of the networks.
    """
    both = [(probes, name), *([(rival, rival_name)] if rival is not None else [])]
    figure = Figure(figsize=(1.4 + 5.4 * len(both), 2.3 + 0.36 * len(probes.labels)), layout="constrained")
    for axes, (found, title) in zip(figure.subplots(1, len(both), squeeze=False)[0], both, strict=True):
        shown = _table(axes, found)
        axes.set_title(f"{title}, {found.num_entries} entries", fontsize=10)
    figure.colorbar(shown, ax=figure.axes, label="R²", pad=0.01)
    figure.suptitle("How much of each property a linear map tells of images it was not fitted to", fontsize=12)
    return figure


def _table(axes: Axes, probes: PoseProbes):
    """R² as colours and numbers; the mean over classes below."""
    mean = [probes.mean(name) if np.isfinite(column).any() else np.nan for name, column in _columns(probes)]
    values = np.vstack([probes.r_squared, mean])
    shown = axes.imshow(np.clip(values, 0, 1), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        text = f"{value:.2f}" if np.isfinite(value) else "-"
        dark = np.isfinite(value) and value > 0.6
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="black" if dark else "white")
    axes.set_facecolor("dimgrey")
    axes.set_xticks(range(len(PROPERTIES)), PROPERTIES, rotation=45, ha="right")
    axes.set_yticks(range(len(values)), [*probes.labels, "mean"])
    axes.set_ylabel("class")
    return shown


def _columns(probes: PoseProbes) -> list[tuple[str, np.ndarray]]:
    return list(zip(PROPERTIES, probes.r_squared.T, strict=True))


def direction_page(found: Sweeps) -> Figure:
    """What is decoded along each direction of a class's poses, within the range of real things: a row for each.

    Args:
        found: of `torchcaps.inspection.sweeps`.
    """
    num_rows, num_steps = found.decoded.shape[:2]
    figure = Figure(figsize=(2.9 + 0.62 * num_steps, 1.3 + 0.64 * num_rows))
    figure.subplots_adjust(
        left=0.24, right=0.84, top=1 - 0.75 / figure.get_figheight(), bottom=0.06, hspace=0.06, wspace=0.05
    )
    grid = figure.subplots(num_rows, num_steps, squeeze=False)
    for row, direction, name, pictures in zip(grid, found.directions, found.names, found.decoded, strict=True):
        for axes, picture in zip(row, pictures, strict=True):
            axes.imshow(to_picture(picture), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        row[-1].yaxis.set_label_position("right")
        row[-1].set_ylabel(_effect(direction), rotation=0, ha="left", va="center", fontsize=8)
    for axes, text in ((grid[0, 0], "least"), (grid[0, num_steps // 2], "middle"), (grid[0, -1], "most")):
        axes.set_title(text, fontsize=8)
    figure.suptitle(f"What the {KINDS[found.kind]} of the capsule of class {found.label} change", fontsize=12)
    figure.supxlabel("from the least to the most that 95 % of real things have", fontsize=8)
    return figure


def _effect(direction: Direction) -> str:
    """The largest change in words: standard deviations among real things."""
    if direction.name not in PROPERTIES:
        return f"change {direction.change:.1f}"
    return f"{direction.effects[PROPERTIES.index(direction.name)]:+.1f} sd"
