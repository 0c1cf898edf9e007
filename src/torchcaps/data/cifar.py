"""CIFAR-10 in its official archives, the binary and the Python one, packed (tar.gz) or unpacked; or as PNG sheets.

A binary batch is a row of records: one byte for the class, 3072 for the pixels, red before green before blue. A Python
batch is a pickle of a dictionary with `data` (n, 3072) and `labels`. Pickles can run anything, so this reader lets them
make nothing but numbers, strings, lists, dictionaries and two stand-ins that remember what numpy was to be told.
"""

import io
import pickle
import tarfile
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data.cifar_sheets import has_sheets, read_sheets
from torchcaps.data.labels import check_label_range
from torchcaps.data.safe_reading import naming, opened
from torchcaps.data.sets import ImageSet

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "package")  # the last one is that of npm
BLOCK = 2**16
MAX_BATCH = 2**26  # bytes; the official ones have 31 million
MAX_ARCHIVE = 2**28  # bytes once unpacked; the official ones have 186 million


def find_cifar(folder: Path) -> Path | None:
    """Where in a folder CIFAR-10 lies: itself, a folder inside it or an archive; None if nowhere."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        if (place / f"{TRAIN[0]}.bin").is_file() or (place / TRAIN[0]).is_file() or has_sheets(place):
            return place
    return next((folder / name for name in ARCHIVES if (folder / name).is_file()), None)


def read_cifar(place: Path) -> tuple[ImageSet, ImageSet]:
    """Training and test images.

    Args:
        place: An archive, or a folder that holds one, the folder inside one, or its files.
    """
    found = find_cifar(place) if place.is_dir() else place
    if found is None or not found.exists():
        raise FileNotFoundError(
            f"{place} holds neither {' nor '.join(ARCHIVES)}, nor what is inside them (data_batch_1 and so on), "
            "nor the sheets data_batch_1.png and so on with their labels"
        )
    if not found.is_dir():
        batches = _packed(found)
    else:
        batches = read_sheets(found, TRAIN, TEST) if has_sheets(found) else _unpacked(found)
    missing = [name for name in (*TRAIN, *TEST) if name not in batches]
    if missing:
        raise ValueError(f"{found} lacks {', '.join(missing)} of CIFAR-10, with or without .bin")
    return _image_set([batches[name] for name in TRAIN]), _image_set([batches[name] for name in TEST])


Batch = tuple[np.ndarray, np.ndarray]


def _unpacked(folder: Path) -> dict[str, Batch]:
    batches = {}
    for name in (*TRAIN, *TEST):
        path = next((path for path in (folder / f"{name}.bin", folder / name) if path.is_file()), None)
        if path is not None:
            _check_size(path, path.stat().st_size)
            batches[name] = _decode(path, path.read_bytes())
    return batches


def _packed(archive: Path) -> dict[str, Batch]:
    """The batches of an archive, read in one pass and never written to disk."""
    batches = {}
    try:
        with opened(archive, "an archive of CIFAR-10") as (file, _):
            limited = _Limited(file, archive)
            with tarfile.open(fileobj=limited, mode="r|") as members:
                for member in members:
                    limited.check(member.offset_data + member.size)
                    name = Path(member.name).name.removesuffix(".bin")
                    if member.isreg() and name in (*TRAIN, *TEST):
                        _check_size(archive / member.name, member.size)
                        content = members.extractfile(member)
                        assert content is not None  # regular members have one
                        batches[name] = _decode(archive / member.name, content.read())
            while limited.read(BLOCK):  # to the end, where gzip has its checksum
                pass
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{archive} is not a tar archive, or is truncated or damaged: {error}") from error
    return batches


class _Limited(BufferedIOBase):
    """An open archive that gives no more bytes than CIFAR-10 can have."""

    def __init__(self, file: BufferedIOBase, path: Path) -> None:
        self.file, self.path, self.num_bytes = file, path, 0

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        content = self.file.read(size)
        self.num_bytes += len(content)
        self.check(self.num_bytes)
        return content

    def check(self, num_bytes: int) -> None:
        """Refuse an archive of more bytes."""
        if num_bytes > MAX_ARCHIVE:
            raise ValueError(f"{self.path} unpacks to more than {MAX_ARCHIVE} bytes: it is not CIFAR-10")


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_BATCH:
        raise ValueError(f"{path} has {num_bytes} bytes, more than any batch of CIFAR-10: it is something else")


def _decode(path: Path, content: bytes) -> Batch:
    decode: Callable[[bytes], Batch] = _decode_binary if path.suffix == ".bin" else _decode_pickle
    with naming(path):
        pixels, labels = decode(content)
        check_label_range(labels, len(CLASSES))
    return pixels, labels


def _decode_binary(content: bytes) -> Batch:
    if len(content) == 0 or len(content) % (1 + PIXELS):
        raise ValueError(
            f"it has {len(content)} bytes, which is no number of records of {1 + PIXELS}: truncated, or not CIFAR-10"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _decode_pickle(content: bytes) -> Batch:
    try:
        values = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle makes its reader raise nearly anything
        raise ValueError(f"it is not a batch of CIFAR-10, or is truncated or damaged: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"it must hold a dictionary with data and labels, got {type(values).__name__}")
    data, labels = (values.get(name.encode(), values.get(name)) for name in ("data", "labels"))
    if not isinstance(data, _Array) or not data.is_bytes((len(data), PIXELS)):
        raise ValueError(f"`data` must be an array of bytes of shape (n, {PIXELS})")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise ValueError("`labels` must be a list of class numbers")
    if len(labels) != len(data):
        raise ValueError(f"it holds {len(data)} images but {len(labels)} labels")
    return np.frombuffer(data.content, np.uint8).reshape(-1, PIXELS), np.array(labels, np.int64)


def _image_set(batches: list[Batch]) -> ImageSet:
    pixels = np.concatenate([pixels for pixels, _ in batches])
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return ImageSet(images=images, labels=np.concatenate([labels for _, labels in batches]), class_names=CLASSES)


class _Type:
    """Stands in for numpy.dtype: its name is all that is needed."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands in for numpy.ndarray: keeps the state it is given and allocates nothing."""

    shape: object = ()
    content: bytes = b""
    type: object = None

    def __setstate__(self, state: tuple[object, object, object, object, bytes]) -> None:
        _, self.shape, self.type, self.is_fortran, self.content = state

    def __len__(self) -> int:
        return len(self.content) // PIXELS if isinstance(self.content, bytes) else 0

    def is_bytes(self, shape: tuple[int, ...]) -> bool:
        """Whether it is an array of unsigned bytes in C order with this shape, not empty, and all of it is there."""
        is_u1 = isinstance(self.type, _Type) and self.type.name in ("u1", b"u1")
        whole = isinstance(self.content, bytes) and len(self.content) == shape[0] * shape[1] > 0
        return is_u1 and whole and self.shape == shape and self.is_fortran is False


def _reconstruct(*_: object) -> _Array:
    """Stands in for numpy's maker of empty arrays."""
    return _Array()


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """Knows the stand-ins and nothing else.

    The one written in Python: the other gives memory to whatever place in its memo a damaged file names.
    """

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in, or a refusal."""
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no archive of CIFAR-10 needs")
        return STAND_INS[module, name]
