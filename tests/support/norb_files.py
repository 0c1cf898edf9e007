"""A small world in smallNORB's files: stripes whose direction is the category, seen by two cameras."""

from pathlib import Path

import numpy as np

from torchcaps.data.norb import write_matrix

NUM_CATEGORIES, VIEWS = 5, 4


def write_pairs(folder: Path, *, size: int = 48, instances: tuple[int, ...] = (4, 6, 7)) -> None:
    """Training pairs of the given instances and test pairs of instances 0 and 1, four views of each."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size]
    for part, chosen in (("training", instances), ("testing", (0, 1))):
        category, instance, view = (
            axis.ravel() for axis in np.meshgrid(range(NUM_CATEGORIES), chosen, range(VIEWS), indexing="ij")
        )
        angle = (np.pi * category / NUM_CATEGORIES)[:, None, None]
        wave = np.sin((np.cos(angle) * rows + np.sin(angle) * columns) * 48 / size + view[:, None, None])
        pictures = 128 + 60 * wave[:, None] + generator.normal(0, 20, (len(category), 2, size, size))
        name = f"stripes-{part}"
        write_matrix(folder / f"{name}-dat.mat", pictures.clip(0, 255).astype(np.uint8))
        write_matrix(folder / f"{name}-cat.mat", category.astype(np.int32))
        info = np.stack([instance, view, 2 * view, np.zeros_like(view)], axis=1).astype(np.int32)
        write_matrix(folder / f"{name}-info.mat", info)
