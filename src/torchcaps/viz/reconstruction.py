"""What a network sees in an image, and what each dimension of a class capsule means."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from torchcaps.inspection import MovedEntries, Reconstructions
from torchcaps.viz.report import to_picture


def reconstructions(found: Reconstructions, truth: Sequence[str] | None = None) -> Figure:
    """Images (above), their reconstructions from the most active class (middle) and where they differ (below).

    Args:
        found: of `torchcaps.inspection.reconstruct`.
        truth: n names of the true classes, where they are known.
    """
    figure = Figure(figsize=(max(1.2 + 1.05 * len(found.images), 7.5), 4.6), layout="constrained")
    rows = figure.subplots(3, len(found.images), squeeze=False)
    for column, (image, decoded) in enumerate(zip(found.images, found.decoded, strict=True)):
        difference = np.abs(image - decoded).mean(0)
        for axes, picture in zip(rows[:, column], (to_picture(image), to_picture(decoded)), strict=False):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
        shown = rows[2, column].imshow(difference, cmap="cividis", vmin=0, vmax=1)
        if truth is not None:
            rows[0, column].set_title(f"true {truth[column]}", fontsize=9)
        rows[1, column].set_title(f"answer {found.answers[column]}", fontsize=9)
        rows[2, column].set_title(f"{difference.mean():.3f}", fontsize=9)
    for axes, name in zip(rows[:, 0], ("image", "reconstruction", "difference"), strict=True):
        axes.set_ylabel(name)
    for axes in rows.flat:
        axes.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=list(rows[2]), label="brightness", pad=0.01)
    figure.suptitle("Reconstructions, with the mean absolute difference per pixel (brightness 0 to 1)", fontsize=12)
    return figure


def capsule_dimensions(found: MovedEntries) -> Figure:
    """What is decoded when one entry of the winning class's pose moves: a row per entry, a column per offset.

    Args:
        found: of `torchcaps.inspection.move_entries`.
    """
    num_dimensions, num_offsets = found.decoded.shape[:2]
    figure = Figure(figsize=(1.0 + 0.62 * num_offsets, 1.3 + 0.62 * num_dimensions))
    figure.subplots_adjust(left=0.11, right=0.98, top=0.93, bottom=0.05, hspace=0.05, wspace=0.05)
    rows = figure.subplots(num_dimensions, num_offsets, squeeze=False)
    for dimension, row in enumerate(rows):
        for axes, picture, offset in zip(row, found.decoded[dimension], found.offsets, strict=True):
            axes.imshow(to_picture(picture), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if dimension == 0:
                axes.set_title(f"{offset:+.2f}" if offset else "as is", fontsize=8)
        row[0].set_ylabel(dimension + 1, rotation=0, ha="right", va="center", fontsize=9)
    figure.supylabel("entry of the pose", fontsize=10)
    figure.supxlabel("added to the entry, pose units (a pose is at most 1 long)", fontsize=10)
    figure.suptitle(f"What each entry of the capsule of class {found.label} changes", fontsize=12)
    return figure
