"""Where in the image the votes of a class come from."""

import numpy as np
from matplotlib.figure import Figure

from torchcaps.inspection import ClassRouting, origin_shares
from torchcaps.viz.report import to_picture


def vote_origins(routed: ClassRouting) -> Figure:
    """The image, and the share of each place of the children's grid in the winning class and in the second.

    A place of the grid sees a window of the image; neighbouring windows overlap.

    Args:
        routed: one image on its way into the classes.
    """
    chosen = routed.strongest[:2]
    maps = [origin_shares(routed, index) for index in chosen]
    most = max(float(np.abs(found).max()) for found in maps)
    figure = Figure(figsize=(3.4 + 3.3 * len(maps), 3.9), layout="constrained")
    first, *panels = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    first.imshow(to_picture(routed.inputs), cmap="gray", vmin=0, vmax=1)
    first.set(title="image", xlabel="pixels")
    for axes, found, index in zip(panels, maps, chosen, strict=True):
        shown = axes.imshow(found, cmap="PuOr_r", vmin=-most, vmax=most)
        for (row, column), share in np.ndenumerate(found):
            if found.size <= 64:
                colour = "white" if abs(share) > 0.6 * most else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        activation = routed.activations[-1, index]
        axes.set(title=f"votes for {routed.labels[index]}\n(activation {activation:.2f})", xlabel="column of capsules")
        axes.set(xticks=range(found.shape[1]), yticks=range(found.shape[0]), ylabel="row of capsules")
    figure.colorbar(shown, ax=panels, label="share of the class's pose, %", pad=0.02)
    figure.suptitle(f"Where votes come from: {routed.title}", fontsize=12)
    return figure
