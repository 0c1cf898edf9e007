"""Examples by number, many at a time: what batches are read from."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Examples(Protocol):
    """Any map-style dataset of (input, target): an ImageSet, a TextSet, or a torch Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


class Source:
    """Reads many examples at once; sets that know how to, with `read(numbers, epoch)` and `labels`, do it themselves.

    Args:
        examples: what is read.

    Attributes:
        rows: all inputs as numbers, where they are held in memory; else None.
        lengths: of the rows, (n,): rows of similar length are best put together.
    """

    rows: Sequence[np.ndarray] | None = None
    lengths: np.ndarray | None = None

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self._is_set = hasattr(examples, "read") and isinstance(getattr(examples, "labels", None), np.ndarray)

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, indices: Sequence[int], epoch: int = 0) -> tuple[Any, np.ndarray]:
        """Raw inputs and targets with these numbers; some sets make new ones in every epoch."""
        if self._is_set:
            return getattr(self.examples, "read")(indices, epoch)  # noqa: B009 (not every dataset has it)
        inputs, targets = zip(*(self.examples[index] for index in indices), strict=True)
        return np.stack([np.asarray(each) for each in inputs]), np.stack([np.asarray(each) for each in targets])

    def targets(self) -> np.ndarray:
        """Targets of all examples, (n, ...); of a dataset without `labels` every example is read for it."""
        if self._is_set:
            return getattr(self.examples, "labels")  # noqa: B009
        return np.stack([np.asarray(self.examples[index][1]) for index in range(len(self))])
