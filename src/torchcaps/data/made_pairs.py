"""Many classes from two sets of ten: a digit beside a garment, 28 x 56 pixels, each pair a class of its own.

Each digit of the source is one example per epoch; its garment, and with 200 classes its side, are drawn anew in every
epoch, from the seed, the epoch and the number of the example alone. Test pairs are made of test pictures: neither of
their halves was ever seen. With fewer classes there are fewer pictures; `num_train` makes them equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from torchcaps.data.made import TEST, TRAIN
from torchcaps.data.sets import ImageSet

# Number of classes: digits, garments and sides; in words.
SHAPES = {10: (2, 5, 1), 25: (5, 5, 1), 50: (5, 10, 1), 100: (10, 10, 1), 200: (10, 10, 2)}
PAIRS = {
    10: "digits 0 and 1 and the first five garments",
    25: "the first five digits and garments",
    50: "the first five digits and ten garments",
    100: "ten digits and ten garments",
    200: "ten digits and ten garments, the digit to the left or to the right",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSet(ImageSet):
    """Pairs that differ from epoch to epoch; `images` and `labels` are those of epoch 0.

    Attributes:
        digits, garments: as many of each; where the set is cut, both are, so that parts have no picture in common.
        sides: 2 if the side of the digit is part of the class.
        stream: of random numbers.
        is_fixed: the same pairs in every epoch.
    """

    digits: ImageSet
    garments: ImageSet
    sides: int
    stream: int = TRAIN
    is_fixed: bool = False
    seed: int = field(default=0)

    @classmethod
    def of(cls, digits: ImageSet, garments: ImageSet, sides: int, *, stream: int, is_fixed: bool, seed: int) -> Self:
        """Pairs of as many digits and garments."""
        numbers = np.arange(len(digits))
        images, labels = _pairs(digits, garments, sides, numbers, (seed, stream, 0))
        sources = {"digits": digits, "garments": garments, "sides": sides, "stream": stream}
        names = _names(digits, garments, sides)
        return cls(images=images, labels=labels, class_names=names, is_fixed=is_fixed, seed=seed, **sources)

    def read(self, indices: "Sequence[int] | np.ndarray", epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of an epoch."""
        if epoch == 0 or self.is_fixed:
            return super().read(indices)
        return _pairs(self.digits, self.garments, self.sides, np.asarray(indices), (self.seed, self.stream, epoch))

    def subset(self, indices: "Sequence[int] | np.ndarray") -> "PairSet":
        """Pairs made anew of the digits and the garments with these numbers."""
        digits, garments = self.digits.subset(indices), self.garments.subset(indices)
        return PairSet.of(digits, garments, self.sides, stream=self.stream, is_fixed=self.is_fixed, seed=self.seed)


def make_pairs(
    num_classes: int,
    digits: tuple[ImageSet, ImageSet | None],
    garments: tuple[ImageSet, ImageSet | None],
    *,
    seed: int = 0,
) -> tuple[ImageSet, ImageSet | None]:
    """Training pairs, new in every epoch, and fixed test pairs of test pictures.

    Args:
        num_classes: 10, 25, 50, 100 or 200.
        digits, garments: training and test pictures of each.
        seed: the same seed gives the same pairs.
    """
    num_digits, num_garments, sides = SHAPES[num_classes]
    made: list[PairSet | None] = []
    for stream, own, others in zip((TRAIN, TEST), digits, garments, strict=True):
        if own is None or others is None:
            made.append(None)
            continue
        own, others = _first_classes(own, num_digits), _first_classes(others, num_garments)
        num = min(len(own), len(others))
        own, others = (part.subset(np.arange(num)) for part in (own, others))
        made.append(PairSet.of(own, others, sides, stream=stream, is_fixed=stream == TEST, seed=seed))
    assert made[0] is not None
    return made[0], made[1]


def _first_classes(pictures: ImageSet, num: int) -> ImageSet:
    """The pictures of the first classes, and their names alone."""
    chosen = pictures.subset(np.flatnonzero(pictures.labels < num))
    return ImageSet(images=chosen.images, labels=chosen.labels, class_names=pictures.class_names[:num])


def _names(digits: ImageSet, garments: ImageSet, sides: int) -> tuple[str, ...]:
    names = [(digit, garment) for digit in digits.class_names for garment in garments.class_names]
    beside = [(f"{digit} {garment}", f"{garment} {digit}") for digit, garment in names]
    return tuple(pair[side] for side in range(sides) for pair in beside)


def _pairs(
    digits: ImageSet, garments: ImageSet, sides: int, numbers: np.ndarray, state: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs with these numbers in an epoch: images uint8 (n, 28, 56), labels (n,)."""
    uniform = np.random.default_rng(state).random((len(digits), 2))[numbers]
    partners = (uniform[:, 0] * len(garments)).astype(np.int64)
    side = (uniform[:, 1] * sides).astype(np.int64)
    first, second = digits.images[numbers], garments.images[partners]
    is_right = side[:, None, None] == 1
    images = np.concatenate([np.where(is_right, second, first), np.where(is_right, first, second)], axis=2)
    pair = digits.labels[numbers] * garments.num_classes + garments.labels[partners]
    return images, side * digits.num_classes * garments.num_classes + pair
