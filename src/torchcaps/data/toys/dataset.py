"""The whole set of toys in smallNORB's files: every toy from all sides, heights and lightings, by two cameras."""

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_count
from torchcaps.data.norb import write_matrix
from torchcaps.data.toys.render import AZIMUTHS, ELEVATIONS, LIGHTINGS, NUM_CAMERAS, bake, render
from torchcaps.data.toys.shapes import CATEGORIES, make_toy

INSTANCES = {"training": (4, 6, 7, 8, 9), "testing": (0, 1, 2, 3, 5)}  # as in smallNORB
KINDS = ("dat", "cat", "info")
SIZES = (48, 96)
AIM = 0.1  # the cameras look up to this far beside the middle of a toy, in each direction
RECIPE = "toys.json"
VERSION = 2  # of the pictures; to be raised whenever shapes or light change


def write_toys(
    folder: Path, *, size: int = 48, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> None:
    """Render all toys into a folder, unless it holds the same already.

    24,300 pairs of pictures for training and as many for testing, of different toys: five categories x five instances
    x 18 azimuths x 9 elevations x 6 lightings. Poses come in random order, each with all five categories one after
    the other.

    Args:
        folder: Where the six files go, under names that the reader of smallNORB knows; toys in another size or
            with another seed that it may hold are replaced.
        size: Height and width of a picture, 48 or 96.
        seed: Of the shapes.
        progress: Called with the number of pairs done and that of all, each time a toy has turned.
    """
    if size not in SIZES:
        raise ValueError(f"size must be {' or '.join(map(str, SIZES))}, got {size!r}")
    recipe = {"version": VERSION, "size": size, "seed": check_count("seed", seed, least=0)}
    paths = {(part, kind): folder / f"toys-{part}-{size}x{size}-{kind}.mat" for part, kind in product(INSTANCES, KINDS)}
    if _recipe(folder) == recipe and all(path.is_file() for path in paths.values()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / RECIPE, *folder.glob("toys-*.mat")):
        old.unlink(missing_ok=True)
    num_done, num_pairs = 0, sum(len(poses(instances)) for instances in INSTANCES.values())
    for part, instances in INSTANCES.items():
        table = poses(instances)
        pairs_IAELC = np.empty(
            (len(instances), len(AZIMUTHS), len(ELEVATIONS), len(LIGHTINGS), len(CATEGORIES), NUM_CAMERAS, size, size),
            dtype=np.uint8,
        )
        for (row, instance), (column, category) in product(enumerate(instances), enumerate(CATEGORIES)):
            for turn, views_EL in enumerate(_turned(category, instance, size, seed)):
                pairs_IAELC[row, turn, :, :, column] = views_EL
                num_done += len(ELEVATIONS) * len(LIGHTINGS)
                if progress is not None:
                    progress(num_done, num_pairs)
        shuffled = np.random.default_rng(seed).permutation(len(table) // len(CATEGORIES))
        order = (len(CATEGORIES) * shuffled[:, None] + np.arange(len(CATEGORIES))).ravel()
        write_matrix(paths[part, "cat"], table[order, 0])
        write_matrix(paths[part, "info"], table[order, 1:])
        write_matrix(paths[part, "dat"], pairs_IAELC.reshape(-1, NUM_CAMERAS, size, size)[order])
    (folder / RECIPE).write_text(json.dumps(recipe) + "\n")


def draw_aims(category: str, instance: int, seed: int) -> Tensor:
    """How far beside the middle of a toy the cameras look, for every azimuth and elevation: (A, E, 3)."""
    generator = np.random.default_rng([seed, CATEGORIES.index(category), instance])
    return torch.from_numpy(generator.uniform(-AIM, AIM, (len(AZIMUTHS), len(ELEVATIONS), 3))).float()


def poses(instances: tuple[int, ...]) -> np.ndarray:
    """Category and pose of every pair, in order, in the numbers of smallNORB.

    Shapes:
        int32 (n, 5): category, instance, elevation 0 to 8, azimuth 0, 2, ..., 34 in tens of degrees, lighting 0 to 5
    """
    axes = (instances, [azimuth // 10 for azimuth in AZIMUTHS], range(len(ELEVATIONS)), range(len(LIGHTINGS)))
    grid = np.meshgrid(*axes, range(len(CATEGORIES)), indexing="ij")
    instance, azimuth, elevation, lighting, category = (axis.ravel() for axis in grid)
    return np.stack((category, instance, elevation, azimuth, lighting), axis=1).astype(np.int32)


def _turned(category: str, instance: int, size: int, seed: int) -> Iterator[np.ndarray]:
    """All views of a toy, azimuth by azimuth."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the steps are short: a second thread would spend its time waiting for the first
    try:
        field = bake(make_toy(category, instance, seed))
        for azimuth, aims_E3 in zip(AZIMUTHS, draw_aims(category, instance, seed), strict=True):
            yield render(field, azimuth, size=size, aims=aims_E3).numpy()
    finally:
        torch.set_num_threads(num_threads)


def _recipe(folder: Path) -> dict | None:
    """How the toys of a folder were made; None if there are none, or not all of them."""
    try:
        return json.loads((folder / RECIPE).read_text())
    except (OSError, ValueError):
        return None
