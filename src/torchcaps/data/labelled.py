"""What all labelled sets have in common, and the parts that a source of data has."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

# The parts of a dataset, and what their folders, files and rows are called.
PART_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("validation", "valid", "val", "dev"),
}


class DataNotice(UserWarning):
    """Something about the data that the user should know."""


class LabelledSet(Protocol):
    """What images and texts with labels have in common.

    Attributes:
        kind: what the inputs are called: "image", "text".
    """

    kind: ClassVar[str]

    @property
    def inputs(self) -> Any:
        """What is classified."""

    @property
    def labels(self) -> np.ndarray:
        """int64 (n,), or bool (n, J) when an input may have several classes or none."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of every class, in the order of the labels."""
        ...

    @property
    def is_multi_label(self) -> bool:
        """Whether an input may have several classes or none."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

    def subset(self, indices: "Sequence[int] | np.ndarray") -> Self:
        """The inputs with these numbers, in this order."""
        ...

    def relabelled(self, labels: np.ndarray, class_names: tuple[str, ...]) -> Self:
        """The same inputs with other labels."""
        ...


Kind = TypeVar("Kind", bound=LabelledSet)


class Parts(NamedTuple, Generic[Kind]):
    """What is trained on, tested on and chosen on, as far as a source has these."""

    train: Kind
    test: Kind | None = None
    validation: Kind | None = None


def which_part(name: str) -> str | None:
    """The part that a folder, a file or a row of this name belongs to; None for any other name."""
    name = name.strip().lower()
    return next((part for part, names in PART_NAMES.items() if name in names), None)
