"""From raw texts to the sub-words of a pretrained encoder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torchcaps.checks import check_count
from torchcaps.inputs.texts import is_chinese
from torchcaps.inputs.tokens import PAD, TextInputs, check_texts, warn_of_long

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, kw_only=True)
class SubwordEncoding(TextInputs):
    """Sub-words of a pretrained encoder and their numbers; its special tokens are added by the model.

    A sub-word's number is that of the encoder plus 1, because 0 is padding here.

    Args:
        tokenizer: what `tokenizer.json` of the encoder holds.
        max_length: sub-words of a text that are read; longer texts are cut, with a warning. (What is longer than the
            encoder can read at once, the model reads in parts.)
    """

    tokenizer: str
    max_length: int = 400

    def __post_init__(self) -> None:
        check_count("max_length", self.max_length)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SubwordEncoding":
        return self

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(
                "this model reads sub-words, for which transformers is missing: pip install 'torchcaps[encoders]'"
            ) from error
        try:
            tokenizer = Tokenizer.from_str(self.tokenizer)
        except Exception as error:  # the library knows no other
            raise ValueError(f"the tokenizer of the encoder cannot be read: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def num_tokens(self) -> int:
        """Numbers that there are: sub-words and padding."""
        return self._tokenizer.get_vocab_size() + 1

    @cached_property
    def unknown(self) -> int:
        """The number of what is no sub-word."""
        model = json.loads(self.tokenizer)["model"]
        name, number = model.get("unk_token"), model.get("unk_id")
        found = number if name is None else self._tokenizer.token_to_id(name)
        return (found or 0) + 1

    @property
    def language(self) -> str:
        """ "zh" where most sub-words are Chinese, else "en"."""
        return "zh" if is_chinese([word.removeprefix("##") for word in self._tokenizer.get_vocab()]) else "en"

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The numbers of the sub-words of each text; a text without any is read as one unknown one."""
        found = self._read(texts)
        rows = [np.array(each.ids, dtype=np.int64) + 1 if each.ids else np.array([self.unknown]) for each in found]
        most = 64 * self.max_length
        is_long = [len(row) > self.max_length or len(text) > most for row, text in zip(rows, texts)]
        return warn_of_long(rows, is_long, self.max_length)

    def by_word(self, text: str, values: Sequence[float]) -> list[tuple[str, float]]:
        """Each word that is read, with the sum of the values of its sub-words."""
        (found,) = self._read([text])
        numbers = [-1 - place if word is None else word for place, word in enumerate(found.word_ids)]
        words: dict[int, tuple[int, int, float]] = {}
        for number, (start, end), value in zip(numbers, found.offsets, values, strict=False):
            first, _, total = words.get(number, (start, end, 0.0))
            words[number] = first, end, total + value
        return [(text[start:end].strip(), total) for start, end, total in words.values()]

    def tokens(self, text: str) -> list[str]:
        """The words of a text that are read."""
        return [word for word, _ in self.by_word(text, [0.0] * self.max_length)]

    def num_tokens_of(self, text: str) -> int:
        """How many sub-words a text has, read or not."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def steps(self) -> dict[str, Any]:
        """The options, and which numbers stand for what."""
        return self.to_dict() | {"padding": PAD, "unknown": self.unknown, "first_subword": 1}

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON knows them."""
        return {"tokenizer": self.tokenizer, "max_length": self.max_length}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "SubwordEncoding":
        """What `to_dict` gave."""
        encoding = cls(tokenizer=options["tokenizer"], max_length=options["max_length"])
        _ = encoding._tokenizer  # what is damaged is told now
        return encoding

    def _read(self, texts: Sequence[str]) -> "list[Encoding]":
        check_texts(texts)
        most = 64 * self.max_length
        return self._tokenizer.encode_batch([text[:most] for text in texts], add_special_tokens=False)
