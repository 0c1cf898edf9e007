"""The words of a text, and what each says for or against every class."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from torchcaps.viz.fonts import legible

LINE = 84  # characters of a line of the text; Chinese ones count twice
LEAST = 5  # characters of the narrowest word, so that its number has room


def word_page(words: Sequence[str], values: np.ndarray, labels: Sequence[str], scores: Sequence[float]) -> Figure:
    """A line of words with one row of colours per class: what a word says for the class (orange) or against (purple).

    Args:
        words: T of the text, in order.
        values: (J, T), parts of the words in the length of each class's pose; see `torchcaps.inspection.WordRouting`.
        labels: J names of the classes.
        scores: J activations of the classes.
    """
    if not words or values.shape != (len(labels), len(words)):
        raise ValueError(f"values must have shape ({len(labels)}, {len(words)}), got {tuple(values.shape)}")
    lines = broken_lines(words)
    widest = max(sum(room(words[place]) for place in line) for line in lines)
    most = float(np.abs(values).max()) or 1.0
    row = 0.34  # inches
    figure = Figure(
        figsize=(max(2.5 + 0.085 * widest, 7), 1.5 + len(lines) * (row * len(labels) + 0.5)), layout="constrained"
    )
    panels = figure.subplots(len(lines), 1, squeeze=False)[:, 0]
    names = [f"{label} ({score:.2f})" for label, score in zip(labels, scores, strict=True)]
    for axes, line in zip(panels, lines, strict=True):
        edges = np.concatenate([[0], np.cumsum([room(words[place]) for place in line])])
        shown = axes.pcolormesh(
            edges,
            np.arange(len(labels) + 1),
            values[:, line],
            cmap="PuOr_r",
            vmin=-most,
            vmax=most,
            edgecolors="white",
            linewidth=1,
        )
        middles = (edges[:-1] + edges[1:]) / 2
        for (label, column), value in np.ndenumerate(values[:, line]):
            colour = "white" if abs(value) > 0.6 * most else "black"
            axes.text(
                middles[column],
                label + 0.5,
                f"{round(100 * value):+d}",
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
            )
        axes.set_xticks(middles, [words[place] for place in line], fontsize=10)
        axes.set_yticks(np.arange(len(labels)) + 0.5, names, fontsize=9)
        axes.set(xlim=(0, widest), ylim=(len(labels), 0))
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=list(panels), label="part in the class's length", pad=0.01, aspect=12)
    figure.supxlabel(
        "numbers: hundredths of the length of a class's pose, which is at most 1 and its activation", fontsize=8
    )
    best = int(np.argmax(scores))
    figure.suptitle(f"What the words say: answer {labels[best]} (activation {scores[best]:.2f})", fontsize=12)
    return legible(figure)


def broken_lines(words: Sequence[str]) -> list[list[int]]:
    """Places of the words of each line."""
    lines, left = [[]], LINE
    for place, word in enumerate(words):
        if room(word) > left and lines[-1]:
            lines.append([])
            left = LINE
        lines[-1].append(place)
        left -= room(word)
    return lines


def room(word: str) -> int:
    """Characters that a word takes in its line, with the space around it."""
    return max(sum(1 if character.isascii() else 2 for character in word), LEAST) + 1
