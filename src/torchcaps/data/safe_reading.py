"""What every reader asks of a file before memory is given to it."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Protocol

import numpy as np

# Deflate, the method of gzip and zip files, turns one byte into at most 1032.
MAX_INFLATION = 1032
CHUNK = 2**24


class Readable(Protocol):
    """An open file of bytes, compressed or not."""

    def read(self, size: int, /) -> bytes: ...


@contextmanager
def opened(path: Path, kind: str) -> Iterator[tuple[BufferedIOBase, bool]]:
    """An open file and whether it is compressed with gzip, which its first bytes tell.

    Args:
        path: The file.
        kind: What was expected there, such as "an idx file".
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {kind} was expected there")
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            file.seek(0)
            yield file, False
            return
    try:
        with gzip.open(path) as file:
            yield file, True
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from error


def check_memory(path: Path, num_bytes: int) -> None:
    """Raise when the images a file declares cannot fit into the memory of this machine."""
    if not hasattr(os, "sysconf"):  # not every system tells
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory:
        raise ValueError(
            f"{path} declares {num_bytes / 1e9:.1f} GB of images, more than the {memory / 1e9:.1f} GB of memory here; "
            "use fewer or smaller images, or name the size to which folders of images are reduced (image_size)"
        )


def check_inflation(path: Path, num_bytes: int, num_compressed: int) -> None:
    """Raise when compressed data declare more bytes than they can hold."""
    if num_bytes > MAX_INFLATION * num_compressed:
        raise ValueError(
            f"{path} declares {num_bytes} bytes, which its {num_compressed} compressed bytes cannot hold: "
            "it is truncated or not what it claims to be"
        )


def read_bytes(path: Path, file: Readable, num_bytes: int, *, to_end: bool = True) -> np.ndarray:
    """The next `num_bytes` bytes of an open file, all that remain if `to_end`; memory grows with what is there."""
    values = bytearray()
    while len(values) < num_bytes and (more := file.read(min(num_bytes - len(values), CHUNK))):
        values += more
    if len(values) < num_bytes or (to_end and file.read(1)):
        relation = "fewer" if len(values) < num_bytes else "more"
        raise ValueError(f"{path} is damaged: it holds {relation} bytes than its header declares")
    return np.frombuffer(values, dtype=np.uint8)


@contextmanager
def naming(path: Path, part: str = "") -> Iterator[None]:
    """Put the name of the file, and of the part of it, before the message of whatever is wrong there."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {part + ': ' if part else ''}{error}") from error
