"""Vectors of texts that are slow to compute, kept on disk: blocks that are whole or absent, the oldest go first."""

import hashlib
import os
import uuid
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from torchcaps.inputs.tokens import TextNotice
from torchcaps.storage import NotWritten, cache_folder, whole_file

LIMIT_VARIABLE, USUAL_LIMIT = "TORCHCAPS_VECTORS_GB", 20.0
KEY_SIZE = 16


class VectorStore:
    """Vectors of the tokens of texts, in 16 bits, known by the numbers of the tokens.

    The folder may be used by several processes at once and deleted at any time.

    Args:
        folder: of the blocks, each a safetensors file.

    Shapes:
        vectors of a text: (tokens, entries), float16
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[bytes, tuple[Any, int, int]] = {}
        self.read: set[str] = set()
        self.scan()

    def __contains__(self, key: bytes) -> bool:
        return key in self.places

    def scan(self) -> None:
        """Learn what others have written."""
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self.read:
                self.read.add(path.name)
                self._learn(path)

    def get(self, key: bytes) -> np.ndarray | None:
        """The vectors of a text, or None."""
        if key not in self.places:
            return None
        block, start, stop = self.places[key]
        return block.get_slice("vectors")[start:stop]

    def add(self, keys: Sequence[bytes], vectors: Sequence[np.ndarray]) -> None:
        """Write a block; where that cannot be done, say so: they are computed anew then."""
        limit = float(os.environ.get(LIMIT_VARIABLE) or USUAL_LIMIT) * 1e9
        new = 2 * sum(each.size for each in vectors)
        if new > limit:
            return
        path = self.folder / f"{uuid.uuid4().hex}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(limit - new)
            tensors = {
                "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_SIZE),
                "stops": np.cumsum([len(each) for each in vectors], dtype=np.int64),
                "vectors": np.concatenate(vectors).astype(np.float16),
            }
            with whole_file(path) as temporary:
                save_file(tensors, temporary)
        except (OSError, NotWritten) as error:
            notice = f"vectors of the encoder are not kept, and computed anew in every epoch: {error}"
            warnings.warn(notice, TextNotice, stacklevel=2)
            return
        self.read.add(path.name)
        self._learn(path)

    def _learn(self, path: Path) -> None:
        try:
            block = safe_open(path, framework="np")
            keys, stops = block.get_tensor("keys"), block.get_tensor("stops")
            length = block.get_slice("vectors").get_shape()[0]
        except (SafetensorError, OSError):  # damaged, or gone again
            return
        if len(stops) != len(keys) or (len(stops) and stops[-1] != length):
            return
        start = 0
        for key, stop in zip(keys, stops.tolist(), strict=True):
            self.places[key.tobytes()] = (block, start, stop)
            start = stop

    def _make_room(self, limit: float) -> None:
        """Delete the oldest blocks, of all encoders, until the others fit; who has one open can go on reading it."""
        blocks = []
        for path in self.folder.parent.glob("*/*.safetensors"):
            try:
                status = path.stat()
            except OSError:
                continue
            blocks.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in blocks)
        for _, size, path in sorted(blocks):
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def key_of(numbers: np.ndarray) -> bytes:
    """What tells the tokens of a text from those of others."""
    return hashlib.blake2b(np.ascontiguousarray(numbers, np.int64).tobytes(), digest_size=KEY_SIZE).digest()


@lru_cache(maxsize=8)
def _store(folder: Path) -> VectorStore:
    return VectorStore(folder)


def store_of(digest: str, part_length: int) -> VectorStore:
    """The store of an encoder with these weights, which reads parts of this length."""
    return _store(cache_folder() / "vectors" / f"{digest}-{part_length}")
