"""Make the embedded toys: some views of toys that belong to the test part, 48 x 48, by two cameras.

`python tools/embed_toys.py [FILE]`; without FILE the embedded file itself is written.
"""

import sys

import numpy as np

from torchcaps.data.load import EMBEDDED
from torchcaps.data.toys.dataset import INSTANCES, draw_aims
from torchcaps.data.toys.render import AZIMUTHS, ELEVATIONS, LIGHTINGS, bake, render
from torchcaps.data.toys.shapes import CATEGORIES, make_toy

SEED, SIZE = 0, 48
PER_CATEGORY = 4


def main() -> None:
    generator = np.random.default_rng(SEED)
    images, labels = [], []
    for label, category in enumerate(CATEGORIES):
        for instance in INSTANCES["testing"][:PER_CATEGORY]:
            turn, height, light = (int(generator.integers(len(axis))) for axis in (AZIMUTHS, ELEVATIONS, LIGHTINGS))
            aims_E3 = draw_aims(category, instance, SEED)[turn]
            views_ELCHW = render(bake(make_toy(category, instance, SEED)), AZIMUTHS[turn], size=SIZE, aims=aims_E3)
            images.append(views_ELCHW[height, light].permute(1, 2, 0).numpy())
            labels.append(label)
    np.savez_compressed(
        sys.argv[1] if len(sys.argv) > 1 else EMBEDDED / "toys.npz", images=np.stack(images), labels=np.array(labels)
    )


if __name__ == "__main__":
    main()
