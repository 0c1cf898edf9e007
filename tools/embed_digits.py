"""Make the embedded digits from the idx files of MNIST.

`TORCHCAPS_DATA=... python tools/embed_digits.py [FILE]`; without FILE the embedded file itself is written.
"""

import sys

import numpy as np

from torchcaps.data import ImageSet, load_data
from torchcaps.data.load import SOURCES

SEED = 0
NUM_TRAIN, NUM_TEST = 5000, 1000


def choose(image_set: ImageSet, num: int, generator: np.random.Generator) -> ImageSet:
    """As many images of each class, in the order of the whole."""
    per_class = num // image_set.num_classes
    chosen = [
        generator.choice(np.flatnonzero(image_set.labels == label), per_class, replace=False)
        for label in range(image_set.num_classes)
    ]
    return image_set.subset(np.sort(np.concatenate(chosen)))


def main() -> None:
    mnist = load_data("mnist")
    generator = np.random.default_rng(SEED)
    train, test = choose(mnist.train, NUM_TRAIN, generator), choose(mnist.test, NUM_TEST, generator)
    np.savez_compressed(
        sys.argv[1] if len(sys.argv) > 1 else SOURCES["digits"].place,
        x_train=train.images,
        y_train=train.labels.astype(np.uint8),
        x_test=test.images,
        y_test=test.labels.astype(np.uint8),
    )


if __name__ == "__main__":
    main()
