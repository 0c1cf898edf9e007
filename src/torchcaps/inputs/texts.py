"""From raw texts to what a model takes: saved with the model, so that whoever loads it reads texts alike."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from torchcaps.checks import check_choice, check_count
from torchcaps.inputs.base import Taken
from torchcaps.inputs.source import Examples, Source

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PAD", "TOKENISERS", "UNKNOWN", "TextEncoding", "TextNotice", "choose_tokeniser", "is_chinese"]


class TextNotice(UserWarning):
    """Something about texts that their owner should know; nothing is lost."""


PAD, UNKNOWN = 0, 1  # numbers of the two tokens that are no words
NUM_SPECIAL = 2

# Words, with the endings 's, n't, 're ... by themselves, as word vectors have them; numbers; every other sign.
_ENDING = r"(?:n't|'(?:s|re|ve|ll|d|m))(?!\w)"
_BEFORE_ENDING = re.compile(rf"(?<=[^\W\d_])(?={_ENDING})")
_WORD = re.compile(rf"{_ENDING}|[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]|_")
_CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
# A Chinese character by itself; what is not Chinese stays together as words do.
_CHARACTER = re.compile(rf"{_CHINESE.pattern}|[^\W\d_\u3400-\u4dbf\u4e00-\u9fff]+|\d+|[^\w\s]|_")


def words(text: str) -> list[str]:
    """Words, numbers and signs, in lower case; "isn't" is "is" and "n't"."""
    return _WORD.findall(_BEFORE_ENDING.sub(" ", text.lower().replace("\u2019", "'")))


def characters(text: str) -> list[str]:
    """Chinese characters one by one; what is not Chinese as in `words`."""
    return _CHARACTER.findall(text.lower())


def chinese(text: str) -> list[str]:
    """Chinese words, as rjieba cuts them."""
    try:
        import rjieba
    except ImportError as error:
        raise ValueError(
            "this model cuts Chinese into words, for which rjieba is missing: pip install 'torchcaps[chinese]'"
        ) from error
    return [token for piece in rjieba.cut(text.lower()) for token in piece.split()]


TOKENISERS: dict[str, Callable[[str], list[str]]] = {"words": words, "characters": characters, "chinese": chinese}


def is_chinese(texts: Iterable[str]) -> bool:
    """Whether more than a fifth of the signs are Chinese characters."""
    num_chinese = num_signs = 0
    for text in texts:
        num_chinese += len(_CHINESE.findall(text))
        num_signs += len(text)
    return num_chinese > num_signs / 5


def choose_tokeniser(texts: Sequence[str]) -> str:
    """The tokeniser for texts: words, for Chinese "chinese" where rjieba is installed, else characters."""
    if not is_chinese(texts[:1000]):
        return "words"
    return "chinese" if find_spec("rjieba") else "characters"


@dataclass(frozen=True, kw_only=True)
class TextEncoding:
    """Tokens, their numbers, and padding.

    Args:
        tokeniser: name of the tokeniser.
        vocabulary: words with a number of their own, from 2 on; all others are unknown (1). 0 is padding.
        max_length: tokens of a text that are read; longer texts are cut, with a warning.

    Example:
        >>> encoding = TextEncoding.of(["a good film", "a bad film"])
        >>> encoding(["a very good film", "bad"])
        tensor([[2, 1, 5, 3],
                [4, 0, 0, 0]])
    """

    kind: ClassVar[str] = "text"

    tokeniser: str
    vocabulary: tuple[str, ...]
    max_length: int = 400

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        check_choice("tokeniser", self.tokeniser, TOKENISERS)
        check_count("max_length", self.max_length)
        if len(self.numbers) != len(self.vocabulary):
            raise ValueError("vocabulary must list every word once")

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        *,
        tokeniser: str = "auto",
        min_count: int = 1,
        max_words: int = 50_000,
        max_length: int = 400,
    ) -> "TextEncoding":
        """The encoding with the most frequent words of `texts`, ties in alphabetical order.

        Args:
            texts: training texts.
            tokeniser: "words", "characters", "chinese" (needs rjieba), or "auto" to look at the texts.
            min_count: rarer words are unknown.
            max_words: size of the vocabulary at most.
            max_length: tokens of a text that are read.
        """
        name = choose_tokeniser(texts) if tokeniser == "auto" else check_choice("tokeniser", tokeniser, TOKENISERS)
        counts = Counter(token for text in texts for token in TOKENISERS[name](text))
        kept = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls(tokeniser=name, vocabulary=tuple(kept[:max_words]), max_length=max_length)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.vocabulary, NUM_SPECIAL)}

    @property
    def num_tokens(self) -> int:
        """Rows of an embedding: words, padding and unknown."""
        return len(self.vocabulary) + NUM_SPECIAL

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text that are read."""
        return self._cut([text])[0]

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The numbers of the tokens of each text; a text without any is read as one unknown word."""
        find = self.numbers.get
        return [
            np.array([find(token, UNKNOWN) for token in tokens] or [UNKNOWN], dtype=np.int64)
            for tokens in self._cut(texts)
        ]

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

    def steps(self) -> dict[str, Any]:
        """The options, and which numbers stand for what."""
        return self.to_dict() | {"padding": PAD, "unknown": UNKNOWN, "first_word": NUM_SPECIAL}

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON knows them; no word holds a space, so that the vocabulary is one line."""
        return {
            "tokeniser": self.tokeniser,
            "max_length": self.max_length,
            "vocabulary": " ".join(self.vocabulary),
        }

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "TextEncoding":
        """What `to_dict` gave."""
        words: str = options["vocabulary"]
        return cls(tokeniser=options["tokeniser"], max_length=options["max_length"], vocabulary=tuple(words.split()))

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string; put it in a list")
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be strings, got {text!r} ({type(text).__name__})")
        # no token of any tokeniser is shorter than a character, so that what lies far beyond is not even cut
        tokenise, most = TOKENISERS[self.tokeniser], 64 * self.max_length
        tokens = [tokenise(text[:most]) for text in texts]
        longest = max((len(row) for row in tokens), default=0)
        if longest > self.max_length or any(len(text) > most for text in texts):
            num_long = sum(len(row) > self.max_length or len(text) > most for row, text in zip(tokens, texts))
            warnings.warn(
                f"{num_long} of {len(texts)} texts are longer than {self.max_length} tokens and were cut there; "
                "raise max_length to read more",
                TextNotice,
                stacklevel=3,
            )
        return [row[: self.max_length] for row in tokens]


class TextSource(Source):
    """Texts as rows of numbers, encoded once.

    Args:
        examples: any dataset of (text, target).
        encoding: from texts to numbers.
    """

    def __init__(self, examples: Examples, encoding: TextEncoding) -> None:
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
