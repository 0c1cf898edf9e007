"""Arrays that are slow to make, kept on disk and mapped into memory the next time.

They lie in $TORCHCAPS_CACHE, else in torchcaps/ under $XDG_CACHE_HOME, else in ~/.cache/torchcaps; the folder can be
deleted at any time. A cached array is known by the files it was made from, their sizes and their times of change.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from torchcaps.data.safe_reading import check_memory
from torchcaps.storage import TEMPORARY, cache_folder, whole_file

ABANDONED = 3600  # seconds after which nobody is writing a file any more


def cached_array(
    name: str,
    sources: Sequence[Path],
    shape: tuple[int, ...],
    make: Callable[[], Iterable[np.ndarray]],
) -> np.ndarray:
    """The bytes that `make` gives piece by piece, mapped from a file that is written the first time.

    Changes to the array stay in memory. Where nothing can be written, the array is made in memory each time.

    Args:
        name: what it is, the beginning of the file's name.
        sources: the files it is made from.
        shape: of the uint8 array.
        make: gives the array in pieces along the first axis; what it raises goes to the caller.
    """
    paths = [source.resolve() for source in sources]
    where = _digest(name, shape, *paths)
    state = _digest(*((status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)))
    path = cache_folder() / f"{name}-{where}-{state}.npy"
    if (known := _mapped(path, shape)) is not None:
        return known
    try:
        _write(path, shape, make())
        for outdated in path.parent.glob(f"{name}-{where}-*.npy"):
            if outdated != path:
                outdated.unlink(missing_ok=True)
        return np.asarray(np.load(path, mmap_mode="c"))
    except OSError:  # no place, or no room; if it is `make` that cannot read, it says so again
        check_memory(sources[0], prod(shape))
        return _in_memory(shape, make())


def _write(path: Path, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
    """Write an .npy file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{TEMPORARY}*"):  # of processes that were killed
        if time.time() - leftover.stat().st_mtime > ABANDONED:
            leftover.unlink(missing_ok=True)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for piece in pieces:
            file.write(piece.tobytes())


def _mapped(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array of a file, or None unless it is there and whole."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception:  # a damaged header raises nearly anything
        return None
    return np.asarray(array) if array.shape == shape and array.dtype == np.uint8 else None


def _in_memory(shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> np.ndarray:
    array, start = np.empty(shape, np.uint8), 0
    for piece in pieces:
        array[start : start + len(piece)] = piece
        start += len(piece)
    return array


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
