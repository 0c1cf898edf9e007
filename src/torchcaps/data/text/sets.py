"""Texts with labels in memory."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from torchcaps.data.labels import check_labels
from torchcaps.inputs.texts import TextNotice


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSet:
    """Texts with labels, checked once here; a valid map-style dataset for torch.

    Shapes:
        texts: n strings
        labels: int64 (n,), or bool (n, J) when a text may have several classes or none

    Example:
        >>> text_set = TextSet(texts=["good", "bad"], labels=np.array([1, 0]), class_names=("no", "yes"))
        >>> len(text_set), text_set[1]
        (2, ('bad', 0))
    """

    kind: ClassVar[str] = "text"

    texts: Sequence[str]
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if not self.texts:
            raise ValueError("there are no texts; at least one is needed")
        for number, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise TypeError(f"texts must be strings, but text {number} is {text!r} ({type(text).__name__})")
        check_labels(self.labels, len(self.texts), len(self.class_names), "text")

    @property
    def inputs(self) -> Sequence[str]:
        """What is classified: the texts."""
        return self.texts

    @property
    def is_multi_label(self) -> bool:
        """Whether a text may have several classes or none."""
        return self.labels.ndim == 2

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> "tuple[str, int | np.ndarray]":
        """One text and its label: a number, or a row of booleans."""
        label = self.labels[index]
        return self.texts[index], (label if self.is_multi_label else int(label))

    def subset(self, indices: "Sequence[int] | np.ndarray") -> "TextSet":
        """The texts with these numbers, in this order."""
        indices = np.asarray(indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) == 0:
            raise ValueError(
                f"indices must be a non-empty list of text numbers, got {indices.dtype} of shape {indices.shape}"
            )
        texts = [self.texts[index] for index in indices.tolist()]
        return TextSet(texts=texts, labels=self.labels[indices], class_names=self.class_names)

    def relabelled(self, labels: np.ndarray, class_names: tuple[str, ...]) -> "TextSet":
        """The same texts with other labels."""
        return replace(self, labels=labels, class_names=class_names)


def label_texts(
    texts: Sequence[str], labels: Sequence[str] | Sequence[list[str]], class_names: tuple[str, ...]
) -> TextSet:
    """Texts whose labels are names, or lists of names where a text may have several classes or none."""
    number = {name: index for index, name in enumerate(class_names)}
    num_empty = sum(not text.strip() for text in texts)
    if num_empty:
        first = next(index for index, text in enumerate(texts) if not text.strip())
        warnings.warn(
            f"{num_empty} of {len(texts)} texts are empty (the first is number {first + 1}); "
            "they stay in the data and are read as one unknown word",
            TextNotice,
            stacklevel=2,
        )
    if labels and isinstance(labels[0], list):
        multi_hot = np.zeros((len(texts), len(class_names)), dtype=bool)
        for row, names in zip(multi_hot, labels, strict=True):
            row[[number[name] for name in names]] = True
        return TextSet(texts=texts, labels=multi_hot, class_names=class_names)
    indices = np.array([number[str(name)] for name in labels], dtype=np.int64)
    return TextSet(texts=texts, labels=indices, class_names=class_names)


def name_classes(labels: Sequence[str] | Sequence[list[str]], source: str) -> tuple[str, ...]:
    """The names of the classes in order: numbers by size, everything else by alphabet."""
    names = {name for label in labels for name in (label if isinstance(label, list) else [label])}
    if len(names) < 2:
        found = f"only the class {names.pop()!r}" if names else "no class"
        raise ValueError(f"{source} has {found}; a classifier needs texts of at least two")
    try:
        size = {name: float(name) for name in names}
    except ValueError:
        return tuple(sorted(names))
    if not all(map(math.isfinite, size.values())):
        return tuple(sorted(names))
    return tuple(sorted(names, key=lambda name: (size[name], name)))
