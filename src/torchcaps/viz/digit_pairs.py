"""What a network sees of each of two digits in one picture."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure


def digit_pairs(
    images: np.ndarray, decoded: np.ndarray, truth: Sequence[str], answers: Sequence[Sequence[str]]
) -> Figure:
    """Pictures with two digits (above), and what is decoded from each of the two winning classes alone (below).

    Args:
        images: as the network sees them.
        decoded: from the pose of each winner.
        truth: n names of what is there.
        answers: n pairs of winners.

    Shapes:
        images: (n, H, W) in [0, 1]; decoded: (n, 2, H, W) in [0, 1]
    """
    num = len(images)
    figure = Figure(figsize=(max(1.2 + 1.2 * num, 6), 4.6), layout="constrained")
    rows_3N = figure.subplots(3, num, squeeze=False)
    for column in range(num):
        pictures = (images[column], *decoded[column])
        titles = (f"true {truth[column]}", *(f"decoded {answer}" for answer in answers[column]))
        for axes, picture, title in zip(rows_3N[:, column], pictures, titles, strict=True):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
            axes.set_title(title, fontsize=8)
            axes.set(xticks=[], yticks=[])
    for axes, name in zip(rows_3N[:, 0], ("picture", "first winner", "second winner"), strict=True):
        axes.set_ylabel(name)
    figure.suptitle("Two digits, and what is decoded from each of the two most active classes alone", fontsize=11)
    return figure
