"""The idx format of MNIST and its relatives, compressed with gzip or not.

A file is a magic number (two zero bytes, the type, the number of axes), the axes as big-endian 32-bit numbers,
then the values. All these sets hold unsigned bytes, type 8, and nothing else is read.
"""

import struct
from math import prod
from pathlib import Path

import numpy as np

from torchcaps.data.labels import check_label_range, numbered_classes
from torchcaps.data.safe_reading import Readable, check_inflation, check_memory, naming, opened, read_bytes
from torchcaps.data.sets import ImageSet

UNSIGNED_BYTES = 8
PARTS = {"train": "train", "test": "t10k"}


def read_idx(path: Path, num_axes: int) -> np.ndarray:
    """The unsigned bytes of one idx file with this number of axes.

    The declared sizes are held against the size of the file before any memory is given to the values.
    """
    with opened(path, "an idx file") as (file, compressed):
        return _read_stream(path, file, num_axes, compressed=compressed)


def has_idx_files(folder: Path) -> bool:
    """Whether a folder holds the training images of an idx set."""
    return _find(folder, "train", "images", 3) is not None


def read_idx_folder(folder: Path, class_names: tuple[str, ...] | None = None) -> tuple[ImageSet, ImageSet | None]:
    """Training and test images of a folder with idx files under the names MNIST gave them.

    Args:
        folder: Holds train-images-idx3-ubyte, train-labels-idx1-ubyte and, where there are test images, the
            same two with t10k for train; each with or without .gz, `.idx3` and `-idx3` alike.
        class_names: One name per label; numbers from 0 to the largest training label when not given.
    """
    images, labels = _read_part(folder, "train")
    if class_names is None:
        class_names = numbered_classes(labels)
    train = _image_set(folder, "train", images, labels, class_names)
    if _find(folder, PARTS["test"], "images", 3) is None and _find(folder, PARTS["test"], "labels", 1) is None:
        return train, None
    return train, _image_set(folder, "test", *_read_part(folder, "test"), class_names)


def _read_stream(path: Path, file: Readable, num_axes: int, *, compressed: bool) -> np.ndarray:
    header = file.read(4 + 4 * num_axes)
    if header[:4] != bytes([0, 0, UNSIGNED_BYTES, num_axes]):
        raise ValueError(
            f"{path} is not an idx file of unsigned bytes with {num_axes} axes: it starts with "
            f"{header[:4].hex(' ') or 'nothing'} where {bytes([0, 0, UNSIGNED_BYTES, num_axes]).hex(' ')} was expected"
        )
    if len(header) < 4 + 4 * num_axes:
        raise ValueError(f"{path} is truncated: it ends inside its header")
    shape = struct.unpack(f">{num_axes}I", header[4:])
    num_bytes, file_size = prod(shape), path.stat().st_size
    if compressed:
        check_inflation(path, num_bytes, file_size)
    elif num_bytes != file_size - len(header):
        raise ValueError(
            f"{path} is truncated or damaged: its header declares {num_bytes} bytes of shape {shape}, "
            f"but {file_size - len(header)} follow"
        )
    check_memory(path, num_bytes)
    return read_bytes(path, file, num_bytes).reshape(shape)


def _find(folder: Path, part: str, kind: str, num_axes: int) -> Path | None:
    for joint in "-.":
        for ending in ("", ".gz"):
            path = folder / f"{part}-{kind}{joint}idx{num_axes}-ubyte{ending}"
            if path.is_file():
                return path
    return None


def _existing(folder: Path, part: str, kind: str, num_axes: int) -> Path:
    path = _find(folder, PARTS[part], kind, num_axes)
    if path is None:
        name = f"{PARTS[part]}-{kind}-idx{num_axes}-ubyte"
        raise FileNotFoundError(f"{folder} holds neither {name} nor {name}.gz, the {part} {kind} of an idx set")
    return path


def _read_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    image_path, label_path = _existing(folder, part, "images", 3), _existing(folder, part, "labels", 1)
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1).astype(np.int64)
    if len(images) != len(labels):
        raise ValueError(f"{image_path} holds {len(images)} images but {label_path} holds {len(labels)} labels")
    return images, labels


def _image_set(
    folder: Path, part: str, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]
) -> ImageSet:
    with naming(_existing(folder, part, "labels", 1)):
        check_label_range(labels, len(class_names))
    with naming(_existing(folder, part, "images", 3)):
        return ImageSet(images=images, labels=labels, class_names=class_names)
