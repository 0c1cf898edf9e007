"""How images lie on disk: one entry for each format that a path may have.

A format of this package is a reader and a line here; one from elsewhere calls `register_format`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchcaps.data.cifar import find_cifar, read_cifar
from torchcaps.data.folders import read_image_folder
from torchcaps.data.idx import has_idx_files, read_idx_folder
from torchcaps.data.labelled import Parts
from torchcaps.data.norb import has_norb_files, read_norb_folder
from torchcaps.data.npz import read_npz
from torchcaps.data.sets import ImageSet


@dataclass(frozen=True, kw_only=True)
class Format:
    """A way in which images with labels lie at a path.

    Attributes:
        name: what it is, for messages, such as "an .npz file".
        is_here: whether a path that exists holds it.
        read: from the path to training, test and validation images, as far as there are these.
        takes_size: whether `read` takes an image size as well.
        takes_any_size: whether that may be any size.
    """

    name: str
    is_here: Callable[[Path], bool]
    read: Callable[..., tuple[ImageSet, ImageSet | None] | Parts[ImageSet]]
    takes_size: bool = False
    takes_any_size: bool = False


# The first that finds itself at a path reads it: any folder may be one of pictures, so these come last.
_formats = [
    Format(name="smallNORB's .mat files", is_here=has_norb_files, read=read_norb_folder, takes_size=True),
    Format(name="idx files", is_here=has_idx_files, read=read_idx_folder),
    Format(name="CIFAR-10", is_here=lambda path: path.is_dir() and find_cifar(path) is not None, read=read_cifar),
    Format(name="an archive of CIFAR-10", is_here=lambda path: path.name.endswith(".tar.gz"), read=read_cifar),
    Format(name="an .npz file", is_here=lambda path: path.suffix.lower() == ".npz", read=read_npz),
]
_PICTURES = Format(name="a folder", is_here=Path.is_dir, read=read_image_folder, takes_size=True, takes_any_size=True)


def register_format(format: Format) -> None:
    """Let `load_data`, and so the command line, read another format; it is asked before those that are there.

    Args:
        format: what it is.
    """
    _formats.insert(0, format)


def find_format(path: Path) -> Format:
    """The format of a path that exists; an error says which there are."""
    for format in (*_formats, _PICTURES):
        if format.is_here(path):
            return format
    raise ValueError(f"{path} must be a folder, an .npz file or an archive of CIFAR-10")


def read_format(path: Path, image_size: tuple[int, int] | None) -> Parts[ImageSet]:
    """The images of a path, in whatever format they lie there."""
    format = find_format(path)
    if image_size is not None and not format.takes_size:
        raise ValueError(f"image_size is for folders of images and smallNORB; {path} has a size of its own")
    train, *others = format.read(path, image_size) if format.takes_size else format.read(path)
    assert train is not None, f"a reader of {format.name} gives training images, or says why not"
    return Parts(train, *others)
