"""How far votes lie from every class, iteration by iteration."""

import numpy as np
from matplotlib.figure import Figure

from torchcaps.inspection import ClassRouting
from torchcaps.viz.palette import COLOURS

NUM_BINS = 30
MOST_CLASSES = 10


def class_distances(routed: ClassRouting, *, share: float = 1.0) -> Figure:
    """Histograms of the distances of votes from the pose of each class, a column per class and a row per iteration.

    Each vote counts with its coupling, so that the bars of all classes together tell where the votes went. Figure 2
    of Hinton, Sabour and Frosst (2018) shows the same, once with all distances and once only the smallest.

    Args:
        routed: one image on its way into the classes.
        share: of the votes to show: those that are nearest to their classes in the first iteration.
    """
    distances_SIJ = routed.distances()
    classes = sorted(routed.strongest[:MOST_CLASSES])
    num_steps = len(distances_SIJ)
    largest = float(distances_SIJ.max() if share == 1 else np.quantile(distances_SIJ[0], share))
    edges = np.linspace(0, largest or 1.0, NUM_BINS + 1)
    size = (1.2 + 1.35 * len(classes), 1.45 + 1.25 * num_steps)
    figure = Figure(figsize=size)  # margins by hand: to find them for so many panels is slow
    across, up = size
    figure.subplots_adjust(left=0.7 / across, right=1 - 0.15 / across, top=1 - 0.8 / up, bottom=0.6 / up)
    panels = figure.subplots(num_steps, len(classes), sharex=True, sharey=True, squeeze=False)
    for step in range(num_steps):
        for column, index in enumerate(classes):
            axes = panels[step, column]
            is_winner = index == routed.strongest[0]
            weights = np.maximum(routed.masses[step, :, index], 0)
            colour = COLOURS[1 if is_winner else 0]
            axes.hist(distances_SIJ[step, :, index], edges, weights=weights, color=colour, histtype="stepfilled")
            axes.tick_params(labelsize=7)
            if step == 0:
                axes.set_title(f"{routed.labels[index]}{' (winner)' if is_winner else ''}", fontsize=9)
        panels[step, 0].set_ylabel(f"iteration {step + 1}", fontsize=8)
    what = "all distances" if share == 1 else f"distances below {largest:.2g}"
    figure.supxlabel("distance of a vote from the class's pose", fontsize=9)
    figure.suptitle(f"Votes for each class, {what}, weighted with their couplings\n{routed.title}", fontsize=10)
    return figure
