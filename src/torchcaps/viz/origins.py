"""Where in the image the votes of a class come from."""

import numpy as np
from matplotlib.figure import Figure

from torchcaps.viz.report import to_picture
from torchcaps.viz.routed import ClassRouting


def vote_origins(routed: ClassRouting) -> Figure:
    """The image, and the share of each place of the children's grid in the winning class and in the second.

    A place of the grid sees a window of the image; neighbouring windows overlap.

    Args:
        routed: one image on its way into the classes.
    """
    chosen = routed.strongest[:2]
    maps = [shares(routed, index) for index in chosen]
    most = max(float(np.abs(found).max()) for found in maps)
    figure = Figure(figsize=(3.4 + 3.3 * len(maps), 3.9), layout="constrained")
    first, *panels = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    first.imshow(to_picture(routed.image), cmap="gray", vmin=0, vmax=1)
    first.set(title="image", xlabel="pixels")
    for axes, found, index in zip(panels, maps, chosen, strict=True):
        shown = axes.imshow(found, cmap="PuOr_r", vmin=-most, vmax=most)
        for (row, column), share in np.ndenumerate(found):
            if found.size <= 64:
                colour = "white" if abs(share) > 0.6 * most else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        activation = routed.activations[-1, index]
        axes.set(title=f"votes for {routed.labels[index]} (activation {activation:.2f})", xlabel="column of capsules")
        axes.set(xticks=range(found.shape[1]), yticks=range(found.shape[0]), ylabel="row of capsules")
    figure.colorbar(shown, ax=panels, label="share of the class's pose, %", pad=0.02)
    figure.suptitle(f"Where votes come from: {routed.title}", fontsize=12)
    return figure


def shares(routed: ClassRouting, chosen: int) -> np.ndarray:
    r"""Per cent of the weighted sum of the votes for a class that come from each place; what opposes it is negative.

    With :math:`s_j = \sum_i c_{ij} \hat u_{ij}` the length :math:`|s_j|` is the sum over children of
    :math:`c_{ij} \langle \hat u_{ij}, s_j / |s_j| \rangle`; here the types of a place are added up.

    Shapes:
        (height, width) of the children's grid
    """
    weighted_ID = routed.couplings[-1, :, chosen, None] * routed.votes[:, chosen]
    total_D = weighted_ID.sum(0)
    parts_I = weighted_ID @ total_D / max(float(total_D @ total_D), 1e-30)
    return 100 * parts_I.reshape(routed.grid).sum(-1)
