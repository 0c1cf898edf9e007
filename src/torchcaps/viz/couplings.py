"""Who sends how much to whom, iteration by iteration."""

import numpy as np
from matplotlib.figure import Figure

from torchcaps.inspection import ClassRouting
from torchcaps.viz.palette import COLOURS


def coupling_strip(routed: ClassRouting) -> Figure:
    """The class activations (above) and the couplings of all children (below) at each iteration.

    Children stand in the order of the class they prefer at the end, then of how strongly.

    Args:
        routed: one image on its way into the classes.
    """
    num_steps, num_children, num_classes = routed.couplings.shape
    figure = Figure(figsize=(1.5 + max(2.2, 0.3 * num_classes) * num_steps, 6.5), layout="constrained")
    grid = figure.subplots(2, num_steps, sharex=True, sharey="row", squeeze=False, height_ratios=(1, 2.6))
    order = child_order(routed.couplings[-1])
    colours = [COLOURS[1] if index == routed.strongest[0] else COLOURS[0] for index in range(num_classes)]
    most = float(routed.couplings.max())
    for step, (bars, picture) in enumerate(grid.T):
        bars.bar(range(num_classes), routed.activations[step], color=colours, edgecolor="black", linewidth=0.5)
        bars.set(title=f"iteration {step + 1}", ylim=(0, 1))
        shown = picture.imshow(
            routed.couplings[step][order], cmap="cividis", vmin=0, vmax=most, aspect="auto", interpolation="nearest"
        )
        long_names = max(map(len, routed.labels)) > 2
        picture.set_xticks(range(num_classes), routed.labels, rotation=60 if long_names else 0, fontsize=8)
        picture.set_xlabel("class")
    grid[0, 0].set_ylabel("activation")
    grid[1, 0].set_ylabel(f"{num_children} children, by the class they prefer")
    figure.colorbar(shown, ax=list(grid[1]), label="coupling (no unit)", pad=0.01)
    figure.suptitle(f"Couplings: {routed.title}", fontsize=12)
    return figure


def child_order(coupling: np.ndarray) -> np.ndarray:
    """Children in the order of the class they prefer, within a class from the strongest coupling to the weakest.

    Shapes:
        coupling: (I, J) -> (I,)
    """
    return np.lexsort((-coupling.max(1), coupling.argmax(1)))
