"""From raw texts to what a model takes: saved with the model, so that whoever loads it reads texts alike."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from torchcaps.checks import check_choice, check_count
from torchcaps.inputs.tokens import PAD, UNKNOWN, TextInputs, TextNotice, check_texts, pad, warn_of_long

__all__ = ["PAD", "TOKENISERS", "UNKNOWN", "TextEncoding", "TextNotice", "choose_tokeniser", "is_chinese", "pad"]

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
class TextEncoding(TextInputs):
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

    def by_word(self, text: str, values: Sequence[float]) -> list[tuple[str, float]]:
        """Each token that is read, with its value."""
        return list(zip(self.tokens(text), values, strict=False))

    @property
    def language(self) -> str:
        """ "zh" where most words are Chinese, else "en"."""
        return "zh" if is_chinese(self.vocabulary[:1000]) else "en"

    def num_tokens_of(self, text: str) -> int:
        """How many tokens a text has, read or not."""
        return len(TOKENISERS[self.tokeniser](text))

    def _cut(self, texts: Sequence[str]) -> list[list[str]]:
        check_texts(texts)
        # no token of any tokeniser is shorter than a character, so that what lies far beyond is not even cut
        tokenise, most = TOKENISERS[self.tokeniser], 64 * self.max_length
        tokens = [tokenise(text[:most]) for text in texts]
        is_long = [len(row) > self.max_length or len(text) > most for row, text in zip(tokens, texts)]
        return warn_of_long(tokens, is_long, self.max_length)
