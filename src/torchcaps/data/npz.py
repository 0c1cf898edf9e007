"""Arrays in an .npz file: x_train, y_train and perhaps x_test, y_test; or images and labels.

Nothing is unpickled. Images are unsigned bytes, whole numbers from 0 to 255, or fractions from 0 to 1, which are
rounded to bytes. Labels are whole numbers (n,), or a table (n, J) of truth values or zeros and ones.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from torchcaps.data.labels import check_label_range, numbered_classes
from torchcaps.data.safe_reading import check_inflation, check_memory, naming, read_bytes
from torchcaps.data.sets import ImageSet

TRAIN = (("x_train", "y_train"), ("images", "labels"))
TEST = ("x_test", "y_test")
# What zipfile raises on a damaged archive: its own error, and those of the parts that stumble over a false number.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, UnicodeDecodeError),
    *(EOFError, OSError, NotImplementedError, RuntimeError),
)


def read_npz(path: Path) -> tuple[ImageSet, ImageSet | None]:
    """Training and test images of an .npz file; the classes are numbered up to the largest training label."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; an .npz file was expected there")
    with open_npz(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        pair = next((pair for pair in TRAIN if names.issuperset(pair)), None)
        if pair is None:
            raise ValueError(
                f"{path} must hold the arrays x_train and y_train, or images and labels; "
                f"it holds {', '.join(sorted(names)) or 'nothing'}"
            )
        train = _read_set(path, archive, *pair, class_names=None)
        test = _read_set(path, archive, *TEST, class_names=train.class_names) if names & set(TEST) else None
        return train, test


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever a damaged one raises becomes a ValueError with the name of the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DAMAGE as error:
        raise ValueError(f"{path} is not an .npz file, or is damaged: {error}") from error


def _read_set(
    path: Path, archive: zipfile.ZipFile, image_name: str, label_name: str, class_names: tuple[str, ...] | None
) -> ImageSet:
    images, labels = _read_images(path, archive, image_name), _read_labels(path, archive, label_name)
    with naming(path, label_name):
        if class_names is None:
            class_names = numbered_classes(labels)
        if labels.ndim == 1:
            check_label_range(labels, len(class_names))
    with naming(path, image_name):
        return ImageSet(images=images, labels=labels, class_names=class_names)


def read_array(
    path: Path, archive: zipfile.ZipFile, name: str, kinds: str = "biuf", content: str = "numbers"
) -> np.ndarray:
    """One array of these kinds of content, read if its header agrees with what archive and file can hold."""
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"{path} lacks the array {name}")
    entry = archive.getinfo(f"{name}.npy")
    check_inflation(path, entry.file_size, min(entry.compress_size, path.stat().st_size))
    with archive.open(entry) as file:
        try:
            version = npy.read_magic(file)
            read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, is_fortran, dtype = read_header(file)
        except Exception as error:  # a header is parsed as Python, whose parser raises nearly anything
            raise ValueError(f"{path}: the array {name} has a damaged header: {error}") from error
        if dtype.kind not in kinds:
            raise ValueError(f"{path}: the array {name} must hold {content}, got {dtype}; nothing is ever unpickled")
        num_bytes = prod(shape) * dtype.itemsize
        if num_bytes != entry.file_size - file.tell():
            raise ValueError(
                f"{path}: the array {name} declares shape {shape} of {dtype}, {num_bytes} bytes, "
                f"but {entry.file_size - file.tell()} are there"
            )
        check_memory(path, num_bytes)
        values = read_bytes(path, file, num_bytes).view(dtype)
    return values.reshape(shape, order="F" if is_fortran else "C")


def _read_images(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    images = read_array(path, archive, name)
    if images.size == 0 or images.dtype == np.uint8:
        return images.astype(np.uint8, copy=False)
    if images.dtype.kind == "b":
        raise ValueError(f"{path}: {name} must hold bytes or fractions, got truth values; save {name} * 1.0")
    if not np.isfinite(images).all():
        number = np.argwhere(~np.isfinite(images))[0][0]
        raise ValueError(f"{path}: image {number} of {name} has a value that is not a number, or infinite")
    highest = 1 if images.dtype.kind == "f" else 255
    if images.min() < 0 or images.max() > highest:
        raise ValueError(
            f"{path}: {name} holds {images.dtype} and must lie between 0 and {highest}, "
            f"got values from {images.min()} to {images.max()}; unsigned bytes (uint8) need no scaling"
        )
    return np.rint(images * (255 / highest)).astype(np.uint8)


def _read_labels(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    labels = read_array(path, archive, name)
    if labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu":
        labels = labels[:, 0]
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        if labels.dtype == np.uint64 and labels.max(initial=0) > np.iinfo(np.int64).max:
            raise ValueError(f"{path}: {name} holds the label {labels.max()}, which is out of range")
        return labels.astype(np.int64)
    if labels.dtype.kind in "biu" and labels.ndim == 2 and ((labels == 0) | (labels == 1)).all():
        return labels.astype(bool)
    raise ValueError(
        f"{path}: {name} must hold whole numbers of shape (n,), or zeros and ones of shape (n, J), "
        f"got {labels.dtype} of shape {labels.shape}"
    )
