"""What all that is read of texts has in common: rows of numbers, 0 at their end, and batches of similar length."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from torchcaps.inputs.base import Taken
from torchcaps.inputs.source import Examples, Source

if TYPE_CHECKING:
    from torch import Tensor

PAD, UNKNOWN = 0, 1  # numbers of the two tokens that are no words


class TextNotice(UserWarning):
    """Something about texts that their owner should know; nothing is lost."""


class TextInputs:
    """From raw texts to rows of numbers; a subclass knows how a text becomes tokens.

    Attributes:
        max_length: tokens of a text that are read.
        language: "zh" where most words are Chinese, else "en".
    """

    kind: ClassVar[str] = "text"

    if TYPE_CHECKING:

        @property
        def max_length(self) -> int: ...

        @property
        def language(self) -> str: ...

        def num_tokens_of(self, text: str, /) -> int: ...

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The numbers of the tokens of each text."""
        raise NotImplementedError

    def __call__(self, texts: Sequence[str]) -> "Tensor":
        """The numbers of the tokens of all texts, padded at the end.

        Shapes:
            (n, T), int64
        """
        return pad(self.encode(texts))

    def open(self, examples: Examples) -> "TextSource":
        """What batches are read from: all texts are encoded at once."""
        return TextSource(examples, self)

    def stack(self, rows: Sequence[np.ndarray]) -> "Tensor":
        """What was read from an open source, as the model takes it: (n, T)."""
        return pad(rows)

    def augmented(self, rows: Sequence[np.ndarray], change: Callable[..., Any], *, is_cropping: bool) -> "Tensor":
        """As `stack`: what is done to images in training is not done to texts."""
        return pad(rows)

    def parts(self, texts: Sequence[str], size: int) -> Iterator[tuple[np.ndarray, list[str]]]:
        """Texts cut into parts of at most `size` and of similar length, each with its numbers among them."""
        order = np.argsort([len(row) for row in self.encode(texts)], kind="stable")
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            yield chosen, [texts[index] for index in chosen]

    def crops(self, texts: Sequence[str], num: int) -> NoReturn:
        """Refused."""
        raise ValueError("crops are for images; a text is read as a whole")

    def taken(self) -> Taken:
        """The numbers of the tokens of a text, padded to the greatest length: int64 (T,)."""
        return Taken("tokens", (self.max_length,), "int64")

    def taken_raw(self, size: tuple[int, int] | None = None) -> NoReturn:
        """Refused: there are no strings in such files."""
        raise ValueError("preprocessing of texts cannot be inside a file: the model takes tokens")


class TextSource(Source):
    """Texts as rows of numbers, encoded once.

    Args:
        examples: any dataset of (text, target).
        encoding: from texts to numbers.
    """

    def __init__(self, examples: Examples, encoding: TextInputs) -> None:
        super().__init__(examples)
        self.rows = rows = encoding.encode([examples[index][0] for index in range(len(examples))])
        self.lengths = np.array([len(row) for row in rows])
        self.all_targets = super().targets()

    def read(self, indices: Sequence[int], epoch: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Rows of numbers and targets."""
        assert self.rows is not None
        return [self.rows[index] for index in indices], self.all_targets[np.asarray(indices)]

    def targets(self) -> np.ndarray:
        """Targets of all texts."""
        return self.all_targets


def pad(rows: Sequence[np.ndarray]) -> "Tensor":
    """Rows of numbers as one tensor, padded at the end: (n, T)."""
    import torch

    tokens = np.full((len(rows), max(map(len, rows), default=1)), PAD, dtype=np.int64)
    for row, numbers in zip(tokens, rows, strict=True):
        row[: len(numbers)] = numbers
    return torch.from_numpy(tokens)


def check_texts(texts: Any) -> None:
    """Raise unless these are strings in a list."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string; put it in a list")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be strings, got {text!r} ({type(text).__name__})")


def warn_of_long(rows: Sequence[Any], is_long: Sequence[bool], max_length: int) -> list[Any]:
    """The first tokens of each text; say so where that is not all."""
    if any(is_long):
        warnings.warn(
            f"{sum(is_long)} of {len(rows)} texts are longer than {max_length} tokens and were cut there; "
            "raise max_length to read more",
            TextNotice,
            stacklevel=4,
        )
    return [row[:max_length] for row in rows]
