"""The picture at the end of a training run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator


def training_report(
    history: Sequence[dict[str, Any]],
    confusion: np.ndarray,
    labels: Sequence[str],
    mistakes: Sequence[tuple[np.ndarray, str]] | None,
    reconstructions: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    *,
    title: str,
) -> Figure:
    """Training curves, confusion matrix, worst mistakes and reconstructions on one page.

    Args:
        history: rows of metrics.jsonl.
        confusion: counts (true class, predicted class).
        labels: names of the classes.
        mistakes: images with a caption such as "4 taken for 9 (0.93)", worst first; None where there are no images.
        reconstructions: pairs (image, reconstruction).
        title: of the page.
    """
    heights = [3.0] + [1.5] * ((mistakes is not None) + bool(reconstructions))
    figure = Figure(figsize=(11, 1.6 * sum(heights)), layout="constrained")
    figure.suptitle(title, fontsize=14)
    upper, *rows = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat
    curves, matrix = upper.subplots(1, 2)
    draw_curves(curves, history)
    draw_confusion(matrix, confusion, labels)
    if mistakes is not None:
        draw_images(rows[0], mistakes, "Most confident mistakes" if mistakes else "No mistakes")
    if reconstructions:
        pairs = [np.concatenate([to_picture(a), to_picture(b)], axis=0) for a, b in reconstructions]
        draw_images(
            rows[-1], [(pair, "") for pair in pairs], "Test images (above) and what the network sees in them (below)"
        )
    return figure


def training_curves(history: Sequence[dict[str, Any]], *, title: str) -> Figure:
    """Error and loss on training and validation data by epoch.

    Args:
        history: rows of metrics.jsonl.
        title: of the page.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    errors, losses = figure.subplots(1, 2)
    draw_curves(errors, history)
    epochs = [row["epoch"] for row in history]
    for key, name, style in (("loss", "training", "--"), ("validation_loss", "validation", "-")):
        if history and key in history[0]:
            losses.plot(epochs, [row[key] for row in history], style, label=name, marker=".")
    losses.xaxis.set_major_locator(MaxNLocator(integer=True))
    losses.set(xlabel="epoch", ylabel="loss (no unit)", title="Loss", ylim=(0, None))
    losses.grid(True, alpha=0.25)
    losses.legend()
    figure.suptitle(title, fontsize=12)
    return figure


def confusion_page(confusion: np.ndarray, labels: Sequence[str], *, title: str) -> Figure:
    """Counts of true against predicted classes.

    Args:
        confusion: counts (true class, predicted class).
        labels: names of the classes.
        title: of the page.
    """
    figure = Figure(figsize=(6, 6.2), layout="constrained")
    draw_confusion(figure.subplots(), confusion, labels)
    figure.suptitle(title, fontsize=12)
    return figure


def draw_curves(axes: Axes, history: Sequence[dict[str, Any]]) -> None:
    """Error on training and validation data by epoch."""
    epochs = [row["epoch"] for row in history]
    for key, name, style in (("accuracy", "training", "--"), ("validation_accuracy", "validation", "-")):
        if history and key in history[0]:
            error = [max(100 * (1 - row[key]), 1e-3) for row in history]
            axes.semilogy(epochs, error, style, label=name, marker=".")
    axes.yaxis.set_major_formatter("{x:g}")  # 20 and not 2 x 10^1
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="error, %", title="Training")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend()


def draw_confusion(axes: Axes, confusion: np.ndarray, labels: Sequence[str]) -> None:
    """Counts of true against predicted classes; colours show the mistakes."""
    labels = [label if label.isascii() else str(index) for index, label in enumerate(labels)]  # what the font has
    share = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    mistakes = share * (1 - np.eye(len(confusion)))
    axes.imshow(mistakes, cmap="cividis", vmin=0, vmax=max(mistakes.max(), 1e-9))
    if len(labels) <= 12:
        for true in range(len(labels)):
            for predicted in range(len(labels)):
                if confusion[true, predicted]:
                    colour = "black" if mistakes[true, predicted] > 0.6 * mistakes.max() else "white"
                    count = str(confusion[true, predicted])
                    axes.text(predicted, true, count, ha="center", va="center", color=colour, fontsize=7)
        axes.set_xticks(range(len(labels)), labels, rotation=45 if max(map(len, labels)) > 2 else 0)
        axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel="predicted class", ylabel="true class", title="Confusion on the test set")


def draw_images(figure: Any, pictures: Sequence[tuple[np.ndarray, str]], title: str, most: int = 10) -> None:
    """A row of small images with captions."""
    figure.suptitle(title, fontsize=11)
    if not pictures:
        return
    for axes, (image, caption) in zip(np.atleast_1d(figure.subplots(1, most)), pictures, strict=False):
        axes.imshow(to_picture(image), cmap="gray", vmin=0, vmax=1)
        axes.set_title(caption, fontsize=8)
    for axes in figure.axes:
        axes.set_axis_off()


def to_picture(image: np.ndarray) -> np.ndarray:
    """Any image as (h, w) or (h, w, 3) in [0, 1]; of two cameras the first.

    Bytes become fractions. What does not lie within [0, 1], such as standardised images, is stretched from its least
    value to its greatest.
    """
    image = np.asarray(image, dtype=np.float32) / (255 if np.asarray(image).dtype == np.uint8 else 1)
    if image.ndim == 3 and image.shape[0] in (1, 2, 3) and image.shape[-1] not in (1, 2, 3):
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[-1] != 3:
        image = image[..., 0]
    least, most = image.min(), image.max()
    return image if least >= 0 and most <= 1 else (image - least) / max(most - least, 1e-30)
