"""Word vectors: GloVe's text, word2vec's binary, npz."""

import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from torchcaps.data.home import VARIABLE, home
from torchcaps.data.npz import open_npz, read_array
from torchcaps.data.safe_reading import naming, opened

SEPARATOR = re.compile(r"[ \t]+")  # other white space may be a word


@dataclass(frozen=True, eq=False)
class Vectors:
    """Words and their vectors.

    Shapes:
        words: n strings
        values: (n, size), float32
    """

    words: tuple[str, ...]
    values: np.ndarray

    @property
    def size(self) -> int:
        """Entries of a vector."""
        return self.values.shape[1]

    def rows(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}


def read_vectors(path: str | Path, wanted: "set[str] | None" = None) -> Vectors:
    """Word vectors of a file.

    Args:
        path: .npz with `words` (strings, or the bytes of their lines) and `vectors`; .bin as word2vec writes it; else
            text (gzip or not), a word and its numbers on each line, as GloVe and fastText write it (a first line with
            two counts, as word2vec writes it, is skipped).
        wanted: only these words are kept, which saves memory; None keeps all.
    """
    text = str(path)
    if text.startswith(f"${VARIABLE}/"):
        text = str(home() / text.removeprefix(f"${VARIABLE}/"))
    path = Path(os.path.expandvars(text)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no word vectors at {path}")
    reader = {".npz": _npz, ".bin": _binary}.get(path.suffix.lower(), _text)
    words, values, size = [], [], None
    for word, vector in reader(path):
        if size is None:
            size = len(vector)
        if len(vector) != size:
            raise ValueError(f"{path}: the vector of {word!r} has {len(vector)} entries, those before it have {size}")
        if wanted is None or word in wanted:
            words.append(word)
            values.append(vector)
    if size is None:
        raise ValueError(f"{path} holds no word vectors")
    stacked = np.stack(values).astype(np.float32) if values else np.zeros((0, size), np.float32)
    if not np.isfinite(stacked).all():
        raise ValueError(f"{path} holds vectors with entries that are not finite")
    return Vectors(tuple(words), stacked)


def _npz(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    with open_npz(path) as archive:
        words, vectors = read_array(path, archive, "words", "Uu", "words"), read_array(path, archive, "vectors", "f")
    if words.dtype.kind == "u":
        with naming(path, "words"):
            words = np.array(words.astype(np.uint8).tobytes().decode().split("\n"))
    if vectors.ndim != 2 or words.ndim != 1 or len(words) != len(vectors):
        raise ValueError(
            f"{path}: vectors must have shape (n, size) and words (n,), got {vectors.shape} and {words.shape}"
        )
    codes = np.frombuffer(words.tobytes(), f"{words.dtype.str[0]}u4")  # four bytes a letter, in the same order
    if codes.max(initial=0) > sys.maxunicode:
        raise ValueError(f"{path}: words has the letter number {codes.max()}, which there is not")
    yield from zip(words.tolist(), vectors, strict=True)


def _text(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    size = None
    with opened(path, "word vectors") as (content, _):
        file = io.TextIOWrapper(cast(BinaryIO, content), encoding="utf-8", errors="strict", newline="\n")
        try:
            for number, line in enumerate(file, 1):
                entries = SEPARATOR.split(line.strip(" \t\r\n"))
                if entries == [""] or (number == 1 and len(entries) == 2):
                    continue  # an empty line, or the counts
                size = size or len(entries) - 1
                start = max(1, len(entries) - size)  # a word may hold spaces, as some of GloVe's do
                try:
                    yield " ".join(entries[:start]), np.array(entries[start:], dtype=np.float32)
                except ValueError as error:
                    raise ValueError(
                        f"{path}, line {number}: expected a word and numbers, got {line[:60]!r}"
                    ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text; word2vec's binary files end in .bin") from error


def _binary(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    with open(path, "rb") as file:
        header = file.readline(100)
        try:
            num_words, size = map(int, header.split())
        except ValueError as error:
            raise ValueError(f"{path} does not begin with the two counts of word2vec's binary format") from error
        if 4 * size * num_words > path.stat().st_size or size < 1:
            raise ValueError(f"{path} is truncated: it declares {num_words} words of {size} entries")
        for _ in range(num_words):
            word = bytearray()
            while (sign := file.read(1)) not in (b" ", b""):
                word += sign
            content = file.read(4 * size)
            if len(content) < 4 * size:
                raise ValueError(f"{path} is truncated: it declares {num_words} words")
            yield word.decode("utf-8", errors="replace").lstrip("\n"), np.frombuffer(content, dtype="<f4")
