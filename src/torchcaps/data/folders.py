"""Folders of PNG and JPEG images, one folder per class, perhaps inside train/, validation/ and test/.

The name of a folder is the name of its class; classes are sorted by name, by number if all names are numbers.
Images lie directly in the folder of their class. They are grey if all of them are, else red-green-blue;
transparency is dropped, 16-bit grey is scaled to 8 bits, and a camera's rotation mark is obeyed. Images of mixed
sizes are all stretched to one size: the median height and the median width of the training images, or
`image_size`.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import numpy as np
from PIL import Image, ImageOps

from torchcaps.data.labelled import DataNotice, Parts, which_part
from torchcaps.data.safe_reading import check_memory
from torchcaps.data.sets import ImageSet

ENDINGS = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 2**26  # of one file: a small file can declare a picture that fills the memory
ORIENTATION = 0x0112  # the EXIF field; from 5 on, the picture lies on its side


@dataclass(frozen=True)
class _Header:
    """What the first bytes of a file say about the picture."""

    path: Path
    label: int
    size: tuple[int, int]  # (height, width)
    is_grey: bool


def read_image_folder(folder: Path, image_size: tuple[int, int] | None = None) -> Parts[ImageSet]:
    """The images of a folder with one folder per class.

    Args:
        folder: Holds the folders of the classes, or train/ and perhaps validation/ and test/ which hold them.
        image_size: (height, width) of the result; the median of the training images when not given.
    """
    entries = [entry for entry in sorted(folder.iterdir()) if entry.is_dir()]
    folders = {part: entry for entry in entries if (part := which_part(entry.name)) is not None}
    if "train" not in folders or not any(entry.is_dir() for entry in folders["train"].iterdir()):
        folders = {"train": folder}  # a class may be called "training"
    class_names = _class_names(folders["train"])
    headers = {part: _headers(place, class_names) for part, place in folders.items()}
    if image_size is None:
        heights, widths = zip(*(header.size for header in headers["train"]), strict=True)
        image_size = median_low(heights), median_low(widths)
    is_grey = all(header.is_grey for part in headers.values() for header in part)
    channels = () if is_grey else (3,)
    num_images = sum(map(len, headers.values()))
    check_memory(folder, num_images * image_size[0] * image_size[1] * (1 if is_grey else 3))

    def decode(headers: list[_Header]) -> ImageSet:
        images = np.empty((len(headers), *image_size, *channels), dtype=np.uint8)
        for image, header in zip(images, headers, strict=True):
            image[:] = read_image(header.path, image_size=image_size, is_grey=is_grey)
        labels = np.array([header.label for header in headers], dtype=np.int64)
        return ImageSet(images=images, labels=labels, class_names=class_names)

    others = (decode(headers[part]) if part in headers else None for part in ("test", "validation"))
    return Parts(decode(headers["train"]), *others)


def read_image(path: Path, *, image_size: tuple[int, int] | None = None, is_grey: bool | None = None) -> np.ndarray:
    """One PNG or JPEG file as uint8: (h, w) if it is grey, or is to be, else (h, w, 3).

    Args:
        path: The file.
        image_size: (height, width) to stretch the picture to; its own when not given.
        is_grey: Whether grey or red-green-blue is wanted; what the file has when not given.
    """
    with _opened(path) as picture:
        picture = upright(picture, is_grey)
        if image_size is not None and picture.size != image_size[::-1]:
            picture = picture.resize(image_size[::-1], Image.Resampling.BILINEAR)
        return np.array(picture)


def upright(picture: Image.Image, is_grey: bool | None = None) -> Image.Image:
    """A picture as every model gets it, grey or red-green-blue; `is_grey` as in `read_image`."""
    picture = ImageOps.exif_transpose(picture)
    if is_grey is None:
        is_grey = _is_grey(picture)
    if picture.mode.startswith("I"):  # 16-bit grey
        values = np.asarray(picture).astype(np.int64).clip(0, 65535)
        picture = Image.fromarray((values / 257).round().astype(np.uint8))
    if picture.mode == "P":
        picture = picture.convert("RGBA")
    return picture.convert("L" if is_grey else "RGB")


def _class_names(folder: Path) -> tuple[str, ...]:
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    if not names:
        raise ValueError(
            f"{folder} holds no folders; expected one folder of PNG or JPEG images per class, "
            "or the idx files of MNIST (train-images-idx3-ubyte and so on)"
        )
    return tuple(sorted(names, key=lambda name: (int(name), name) if all(map(str.isdecimal, names)) else (0, name)))


def _headers(folder: Path, class_names: tuple[str, ...]) -> list[_Header]:
    """The headers of all images; of a test folder too, which may lack classes but has no others."""
    headers = []
    for name in _class_names(folder):
        if name not in class_names:
            raise ValueError(f"{folder / name} is a class that training does not have: {', '.join(class_names)}")
        files = [entry for entry in (folder / name).iterdir() if not entry.name.startswith(".")]
        paths = sorted(path for path in files if path.suffix.lower() in ENDINGS)
        if not paths:
            others = f"it holds {min(files).name}" if files else "it is empty"
            raise ValueError(f"{folder / name} has no images that end in {', '.join(ENDINGS)}; {others}")
        if len(paths) < len(files):
            others = f"{len(files) - len(paths)} of {len(files)} files in {folder / name}"
            warnings.warn(f"{others} do not end in {', '.join(ENDINGS)} and are left out", DataNotice, stacklevel=2)
        headers += [_read_header(path, class_names.index(name)) for path in paths]
    return headers


def _read_header(path: Path, label: int) -> _Header:
    with _opened(path) as picture:
        width, height = picture.size
        # Only JPEG has the mark in its header; a PNG would have to be decoded to find it.
        if picture.format == "JPEG" and picture.getexif().get(ORIENTATION, 1) >= 5:
            width, height = height, width
        return _Header(path, label, (height, width), _is_grey(picture))


def _is_grey(picture: Image.Image) -> bool:
    return picture.mode in ("1", "L", "LA") or picture.mode.startswith("I")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An open picture; whatever a decoder may raise becomes one sentence that names the file."""
    if not path.is_file():
        state = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {state}; a PNG or JPEG image was expected there")
    try:
        with Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ValueError(f"it declares {picture.width} x {picture.height} pixels, more than {MAX_PIXELS}")
            yield picture
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise ValueError(f"{path} cannot be read as a PNG or JPEG image: {error}") from error
