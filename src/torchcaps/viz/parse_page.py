"""The parse tree of an image on a page."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from torchcaps.inspection import ParseNode, ParseTree
from torchcaps.viz.palette import COLOURS
from torchcaps.viz.report import to_picture

THUMBNAIL, STEP, FLOOR, MARGIN = 0.85, 1.0, 1.65, 1.25  # inches: an image, to the next one, to the next layer, left
HEAD, FOOT = 0.65, 0.75  # inches above the class and below the primary capsules
WIDEST_LINE = 9.0  # points, of a child that is all of its parent
DIMMED = 0.35  # brightness of what a capsule does not see


def parse_tree_page(tree: ParseTree, image: np.ndarray) -> Figure:
    """The class above, below it the capsules that it is made of, each with what it sees of the image.

    Args:
        tree: of `torchcaps.inspection.parse_tree`.
        image: (C, H, W), after preprocessing.
    """
    root, layers = tree.root, tree.layers
    places: dict[int, float] = {}
    num_columns = place_columns(root, places, 0)
    width = max(MARGIN + STEP * num_columns + 0.2, 7.5)
    height = HEAD + FLOOR * (len(layers) - 1) + THUMBNAIL + FOOT
    figure = Figure(figsize=(width, height))
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, width), ylim=(height, 0))
    page.set_axis_off()
    picture = to_picture(image)
    windows: dict[str, tuple[int, int]] = {}

    def draw(node: ParseNode, parent: tuple[float, float] | None) -> None:
        floor = len(layers) - 1 - layers.index(node.layer)
        across, top = MARGIN + STEP * places[id(node)], HEAD + FLOOR * floor
        windows.setdefault(node.layer, node.window[2:])
        if parent is not None:
            page.plot(
                [parent[0], across],
                [parent[1], top],
                color="0.55",
                linewidth=max(WIDEST_LINE * node.share, 0.6),
                zorder=0,
            )
        box = ((across - THUMBNAIL / 2) / width, 1 - (top + THUMBNAIL) / height, THUMBNAIL / width, THUMBNAIL / height)
        draw_window(figure.add_axes(box), picture, node.window, COLOURS[floor % len(COLOURS)])
        name = node.label or f"type {node.type}"
        caption = f"{name}: {node.activation:.2f}" + ("" if parent is None else f"\n{100 * node.share:.0f} %")
        below = top + THUMBNAIL + 0.04
        page.text(across, below, caption, ha="center", va="top", fontsize=8, backgroundcolor="white", linespacing=1.1)
        for child in node.children:
            draw(child, (across, below + (0.16 if parent is None else 0.3)))

    draw(root, None)
    for floor, layer in enumerate(reversed(layers)):
        name = (
            "class"
            if floor == 0
            else f"{layer}\n{windows[layer][0]} x {windows[layer][1]} pixels"
            if layer in windows
            else ""
        )
        page.text(0.1, HEAD + FLOOR * floor + THUMBNAIL / 2, name, va="center", fontsize=9, fontweight="bold")
    page.text(
        width / 2,
        height - 0.12,
        "after the colon: activation; %: share of the parent's mass (coupling x activation), as the width of the line",
        ha="center",
        fontsize=8,
    )
    figure.suptitle(
        f"Parse tree: class {root.label} (activation {root.activation:.2f})", fontsize=12, y=1 - 0.12 / height, va="top"
    )
    return figure


def place_columns(node: ParseNode, places: dict[int, float], first: int) -> int:
    """Give every node, by its id, a column: leaves side by side, others above the middle of theirs; columns used."""
    used = sum_used = 0
    for child in node.children:
        used = place_columns(child, places, first + sum_used)
        sum_used += used
    width = max(sum_used, 1)
    places[id(node)] = first + width / 2
    return width


def draw_window(axes: Axes, picture: np.ndarray, window: tuple[int, int, int, int], colour: str) -> None:
    """An image that is dark where a capsule does not look."""
    top, left, height, width = window
    seen = np.full(picture.shape[:2], DIMMED)
    seen[top : top + height, left : left + width] = 1
    axes.imshow(picture * (seen if picture.ndim == 2 else seen[..., None]), cmap="gray", vmin=0, vmax=1)
    axes.add_patch(
        Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor=colour, linewidth=1.8, clip_on=False)
    )
    axes.set(xticks=[], yticks=[])
