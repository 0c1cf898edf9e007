"""From the items that people used to what a model takes: saved with the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from torchcaps.checks import check_count
from torchcaps.inputs.base import Taken
from torchcaps.inputs.source import Examples, Source
from torchcaps.inputs.texts import PAD, pad

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class HistoryEncoding:
    """Items and their numbers, and padding.

    Args:
        items: names of the items, numbered from 1 on; 0 is padding.
        max_length: items that the model reads, the latest. Histories are not cut to them: what was used earlier is left
            out of recommendations all the same.

    Example:
        >>> HistoryEncoding(items=("tea", "milk"))([["milk", "tea"], ["tea"]])
        tensor([[2, 1],
                [1, 0]])
    """

    kind: ClassVar[str] = "user"

    items: tuple[str, ...]
    max_length: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))
        check_count("max_length", self.max_length)
        if len(self.numbers) != len(self.items):
            raise ValueError("items must list every item once")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each item."""
        return {name: number for number, name in enumerate(self.items, 1)}

    def encode(self, histories: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        """The numbers of the items of each history, the latest last."""
        if isinstance(histories, str) or any(isinstance(history, str) for history in histories):
            raise TypeError("a history is a list of items, got a string; put it in a list")
        return [np.array([self.number(item) for item in history], dtype=np.int64) for history in histories]

    def number(self, item: Any) -> int:
        """The number of an item; one that training has not seen is an error."""
        found = self.numbers.get(str(item))
        if found is None:
            near = get_close_matches(str(item), self.items[:10_000], n=1)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out, or train with data that have it"
            raise ValueError(f"the model does not know the item {str(item)!r} among its {len(self.items):,}; {hint}")
        return found

    def __call__(self, histories: Sequence[Sequence[Any]]) -> "Tensor":
        """Numbers, padded at the end: (n, T) int64."""
        return pad(self.encode(histories))

    def open(self, examples: Examples) -> "HistorySource":
        """What batches are read from."""
        return HistorySource(examples, self)

    def stack(self, rows: Sequence[np.ndarray]) -> "Tensor":
        """What was read from an open source, as the model takes it: (n, T)."""
        return pad(rows)

    def augmented(self, rows: Sequence[np.ndarray], change: Callable[..., Any], *, is_cropping: bool) -> "Tensor":
        """As `stack`: what is done to images in training is not done to histories."""
        return pad(rows)

    def parts(self, histories: Sequence[Sequence[Any]], size: int) -> Iterator[tuple[np.ndarray, list[Any]]]:
        """Histories cut into parts of at most `size` and of similar length, each with its numbers among them."""
        order = np.argsort([len(history) for history in histories], kind="stable")
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            yield chosen, [histories[index] for index in chosen]

    def crops(self, histories: Any, num: int) -> NoReturn:
        """Refused."""
        raise ValueError("crops are for images; a history is read as a whole")

    def taken(self) -> Taken:
        """The numbers of the latest items, padded to the greatest length: int64 (T,)."""
        return Taken("used", (self.max_length,), "int64", len(self.items))

    def taken_raw(self, size: tuple[int, int] | None = None) -> NoReturn:
        """Refused: there are no strings in such files."""
        raise ValueError("names of items cannot be inside a file: the model takes their numbers")

    def steps(self) -> dict[str, Any]:
        """The options, and which numbers stand for what."""
        return self.to_dict() | {"padding": PAD, "first_item": 1}

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON knows them."""
        return {"max_length": self.max_length, "items": list(self.items)}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "HistoryEncoding":
        """What `to_dict` gave."""
        return cls(items=tuple(map(str, options["items"])), max_length=options["max_length"])


class HistorySource(Source):
    """Histories as rows of numbers, cut in training to what the model reads.

    Args:
        examples: a HistorySet, or any dataset of (items, items asked for) by name.
        encoding: from names to numbers.
    """

    def __init__(self, examples: Examples, encoding: HistoryEncoding) -> None:
        super().__init__(examples)
        self.encoding = encoding
        self.is_training = bool(getattr(examples, "is_training", False))
        if hasattr(examples, "interactions"):
            self.histories, self.all_targets = None, examples.labels  # pyrefly: ignore[missing-attribute]
            lengths = examples.ends - examples.starts  # pyrefly: ignore[missing-attribute]
        else:
            pairs = [examples[index] for index in range(len(examples))]
            self.histories = encoding.encode([history for history, _ in pairs])
            asked = [[target] if np.ndim(target) == 0 else target for _, target in pairs]
            self.all_targets = pad(encoding.encode(asked)).numpy()
            lengths = np.array([len(history) for history in self.histories])
        self.lengths = np.minimum(lengths, encoding.max_length) if self.is_training else lengths

    def read(self, indices: Sequence[int], epoch: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Rows of numbers and targets."""
        if self.histories is None:
            rows = [self.examples[index][0] for index in indices]
        else:
            rows = [self.histories[index] for index in indices]
        if self.is_training:
            rows = [row[-self.encoding.max_length :] for row in rows]
        return rows, self.all_targets[np.asarray(indices)]

    def targets(self) -> np.ndarray:
        """Numbers of what is asked for: (n, most)."""
        return self.all_targets
