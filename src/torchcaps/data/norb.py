"""smallNORB and NORB in their official binary matrices, compressed with gzip or not.

A file is a magic number for the type, the number of axes, at least three axes (missing ones are 1), all little-endian
32-bit numbers, then the values. Three files belong together: NAME-dat.mat holds pairs of pictures (n, 2, h, w), one of
each camera, NAME-cat.mat the category of each pair, NAME-info.mat its instance (0 to 9 within its category), elevation
(0 to 8: 30 to 70 degrees in steps of 5), azimuth (0, 2, ..., 34: tens of degrees) and lighting (0 to 5). Where
NAME has "training" or "testing" in it, it is a part of the training or test images; NORB has several of each.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from torchcaps.data.cache import cached_array
from torchcaps.data.labels import check_label_range
from torchcaps.data.safe_reading import CHUNK, Readable, check_inflation, check_memory, naming, opened, read_bytes
from torchcaps.data.sets import ImageSet

DTYPES = {
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("|u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
MOST_AXES = 8
CATEGORIES = ("animal", "human", "aeroplane", "truck", "car")
BLANK = "blank"  # the sixth category of NORB: no object in the picture
FACTORS = ("instance", "elevation", "azimuth", "lighting")
PARTS = {"train": "training", "test": "testing"}
KIND = "a binary matrix of smallNORB"


@dataclass(frozen=True)
class Header:
    """Type and sizes of a binary matrix, and where its values begin."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    compressed: bool


def has_norb_files(folder: Path) -> bool:
    """Whether a folder holds training images of smallNORB or NORB."""
    return bool(_pictures(folder, "train"))


def read_norb_folder(folder: Path, image_size: tuple[int, int] | None = None) -> tuple[ImageSet, ImageSet | None]:
    """Training and test images of a folder with the official files; pairs of pictures become two channels.

    Plain files are mapped into memory, not read. What has to be unpacked, joined or reduced is done once and kept in
    the cache, see `torchcaps.data.cache`.

    Args:
        folder: Holds the files under their official names, each with or without .gz.
        image_size: (height, width), a whole fraction of the stored one: means of blocks, rounded to bytes. As stored
            when not given.
    """
    if not has_norb_files(folder):
        raise FileNotFoundError(f"{folder} holds no ...-training-...-dat.mat or .mat.gz, the pictures of smallNORB")
    train_labels = _read_labels(folder, "train")
    class_names = CATEGORIES + ((BLANK,) if train_labels.max(initial=0) == len(CATEGORIES) else ())
    train = _read_part(folder, "train", train_labels, class_names, image_size)
    if not _pictures(folder, "test"):
        return train, None
    return train, _read_part(folder, "test", _read_labels(folder, "test"), class_names, image_size)


def read_header(path: Path) -> Header:
    """The header of a binary matrix, held against the size of its file."""
    with opened(path, KIND) as (file, compressed):
        return _read_header(path, file, compressed=compressed)


def read_matrix(path: Path, num_axes: int) -> np.ndarray:
    """A whole binary matrix with this number of axes."""
    with opened(path, KIND) as (file, compressed):
        header = _read_header(path, file, compressed=compressed)
        if len(header.shape) != num_axes:
            raise ValueError(f"{path} must hold a matrix with {num_axes} axes, got shape {header.shape}")
        num_bytes = prod(header.shape) * header.dtype.itemsize
        check_memory(path, num_bytes)
        return read_bytes(path, file, num_bytes).view(header.dtype).reshape(header.shape)


def write_matrix(path: Path, values: np.ndarray) -> None:
    """Write an array of 1 to 8 axes as a binary matrix, whole or not at all."""
    dtype = values.dtype.newbyteorder("<")
    magic = next((magic for magic, known in DTYPES.items() if known == dtype), None)
    if magic is None or not 1 <= values.ndim <= MOST_AXES:
        raise ValueError(
            f"a binary matrix has 1 to {MOST_AXES} axes of {', '.join(str(known) for known in DTYPES.values())}, "
            f"got {values.dtype} of shape {values.shape}"
        )
    axes = (*values.shape, *[1] * (3 - values.ndim))
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(struct.pack(f"<ii{len(axes)}i", magic, values.ndim, *axes))
        for start in range(0, len(values), 1024):
            file.write(np.ascontiguousarray(values[start : start + 1024], dtype=dtype).tobytes())
    temporary.replace(path)


def _read_header(path: Path, file: Readable, *, compressed: bool) -> Header:
    start = file.read(8)
    magic, num_axes = struct.unpack("<ii", start) if len(start) == 8 else (None, 0)
    if magic not in DTYPES or not 1 <= num_axes <= MOST_AXES:
        raise ValueError(
            f"{path} is not {KIND}: it starts with {start.hex(' ') or 'nothing'} where a type such as "
            f"55 4c 3d 1e and a number of axes from 1 to {MOST_AXES} were expected"
        )
    stored = 4 * max(num_axes, 3)
    if len(axes := file.read(stored)) < stored:
        raise ValueError(f"{path} is truncated: it ends inside its header")
    shape = struct.unpack(f"<{num_axes}i", axes[: 4 * num_axes])
    if min(shape) < 1:
        raise ValueError(f"{path} is damaged: its header declares the sizes {shape}")
    header = Header(DTYPES[magic], shape, 8 + stored, compressed)
    num_bytes, file_size = prod(shape) * header.dtype.itemsize, path.stat().st_size
    if compressed:
        check_inflation(path, num_bytes, file_size)
    elif num_bytes != file_size - header.offset:
        raise ValueError(
            f"{path} is truncated or damaged: its header declares {num_bytes} bytes of shape {shape}, "
            f"but {file_size - header.offset} follow"
        )
    return header


def _pictures(folder: Path, part: str) -> list[Path]:
    """The files with pictures of a part, in order; of a file and its compressed twin the file."""
    found = {}
    for ending in (".mat.gz", ".mat"):
        for path in folder.glob(f"*{PARTS[part]}*-dat{ending}"):
            found[path.name.removesuffix(f"-dat{ending}")] = path
    return [found[name] for name in sorted(found)]


def _beside(pictures: Path, kind: str) -> Path:
    """The file with the categories or the poses of a file with pictures."""
    name = pictures.name.removesuffix(".gz").removesuffix("-dat.mat")
    paths = [pictures.with_name(f"{name}-{kind}.mat{ending}") for ending in ("", ".gz")]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{paths[0]} does not exist, nor with .gz; it belongs to {pictures.name}")
    return found


def _read_beside(pictures: Path, kind: str, num_axes: int) -> tuple[Path, np.ndarray]:
    path = _beside(pictures, kind)
    values, num_pairs = read_matrix(path, num_axes), read_header(pictures).shape[0]
    if len(values) != num_pairs:
        raise ValueError(f"{pictures} holds {num_pairs} pairs of pictures but {path} describes {len(values)}")
    return path, values


def _read_labels(folder: Path, part: str) -> np.ndarray:
    labels = []
    for pictures in _pictures(folder, part):
        path, values = _read_beside(pictures, "cat", 1)
        with naming(path):
            if values.dtype.kind != "i":
                raise ValueError(f"labels must be whole numbers, got {values.dtype}")
            check_label_range(values, len(CATEGORIES) + 1)
        labels.append(values.astype(np.int64))
    return np.concatenate(labels)


def _read_factors(folder: Path, part: str) -> dict[str, np.ndarray]:
    tables = []
    for pictures in _pictures(folder, part):
        path, values = _read_beside(pictures, "info", 2)
        if values.shape[1] < len(FACTORS) or not np.isfinite(values).all():
            raise ValueError(
                f"{path} must hold at least {len(FACTORS)} finite numbers per image ({', '.join(FACTORS)}), "
                f"got {values.dtype} of shape {values.shape}"
            )
        tables.append(values[:, : len(FACTORS)].astype(np.int64))
    return dict(zip(FACTORS, np.concatenate(tables).T.copy(), strict=True))


def _read_part(
    folder: Path, part: str, labels: np.ndarray, class_names: tuple[str, ...], image_size: tuple[int, int] | None
) -> ImageSet:
    with naming(_beside(_pictures(folder, part)[0], "cat")):
        check_label_range(labels, len(class_names))
    return ImageSet(
        images=_read_images(_pictures(folder, part), part, image_size),
        labels=labels,
        class_names=class_names,
        factors=_read_factors(folder, part),
    )


def _read_images(paths: list[Path], part: str, image_size: tuple[int, int] | None) -> np.ndarray:
    headers = [read_header(path) for path in paths]
    for path, header in zip(paths, headers, strict=True):
        if header.dtype != np.uint8 or len(header.shape) != 4 or header.shape[1] != 2:
            raise ValueError(
                f"{path} must hold bytes of shape (n, 2, h, w), a picture of each of two cameras, "
                f"got {header.dtype} of shape {header.shape}"
            )
        if header.shape[1:] != headers[0].shape[1:]:
            raise ValueError(f"{path} holds pictures of {header.shape[1:]} but {paths[0]} of {headers[0].shape[1:]}")
    stored_size = headers[0].shape[2:]
    size = image_size or stored_size
    if stored_size[0] % size[0] or stored_size[1] % size[1]:
        raise ValueError(f"image_size must be a whole fraction of {stored_size}, the size in {paths[0]}, got {size}")
    if len(paths) == 1 and size == stored_size and not headers[0].compressed:
        # Changes to the array stay in memory: the file is never written.
        images_NCHW = np.memmap(paths[0], np.uint8, "c", headers[0].offset, headers[0].shape)
    else:
        shape = (sum(header.shape[0] for header in headers), 2, *size)
        images_NCHW = cached_array(f"norb-{part}", paths, shape, lambda: _pieces(paths, size))
    return np.asarray(images_NCHW).transpose(0, 2, 3, 1)


def _pieces(paths: list[Path], size: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The pictures of several files, some at a time, reduced to `size`."""
    for path in paths:
        with opened(path, KIND) as (file, compressed):
            header = _read_header(path, file, compressed=compressed)
            num_pairs, _, height, width = header.shape
            at_once = max(CHUNK // prod(header.shape[1:]), 1)
            for start in range(0, num_pairs, at_once):
                is_last = start + at_once >= num_pairs
                shape = (min(at_once, num_pairs - start), *header.shape[1:])
                images_NCHW = read_bytes(path, file, prod(shape), to_end=is_last).reshape(shape)
                if (height, width) != size:
                    images_NCHW = _block_means(images_NCHW, height // size[0], width // size[1])
                yield images_NCHW


def _block_means(images_NCHW: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Means of blocks of `rows` x `columns` pixels, rounded to bytes; halves go to the even neighbour."""
    sums = np.zeros((*images_NCHW.shape[:2], images_NCHW.shape[2] // rows, images_NCHW.shape[3] // columns), np.float32)
    for row in range(rows):  # whole planes at a time: numpy sums over short axes slowly
        for column in range(columns):
            sums += images_NCHW[:, :, row::rows, column::columns]
    return np.rint(sums / (rows * columns)).astype(np.uint8)
