"""Sets that are made from digits while they are read: two overlapping digits, two side by side, distorted digits.

`multimnist`, as Sabour, Frosst and Hinton (2017) made it: two digits of different classes, each shifted by up to 4
pixels in each direction, one over the other on 36 x 36 pixels; where both have ink, the stronger counts.
`side-by-side`, as in Su's test of transfer: two digits of different classes next to each other, 28 x 56.
`affnist`, in the style of the set of that name: training digits lie anywhere on 40 x 40 pixels, test digits are also
turned, sheared and stretched.

Each digit of the source is the first of one example per epoch; its partner, place and distortion are drawn anew in
every epoch, from the seed, the epoch and the number of the example alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from torchcaps.checks import check_choice, check_count
from torchcaps.data.augment import warp
from torchcaps.data.sets import ImageSet

MULTIMNIST_SHIFT = 4
AFFNIST_SHIFT = 6  # 28 + 2 * 6 = 40
ROTATION, SHEAR, STRETCH = math.radians(20), 0.2, (0.8, 1.2)
NUM_DRAWS = 7  # random numbers of an example: the first for its partner, the others for places and distortions
TRAIN, TEST = 0, 1  # streams of random numbers
CHUNK = 4096  # examples made at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Maker:
    """Makes examples from digits.

    Attributes:
        digits: One label each.
        compose: From one or two arrays of digits, uint8 (B, h, w), and random numbers in [0, 1), (B, draws), to
            images, uint8 (B, h', w').
        num_digits: In an example, 1 or 2; two are of different classes.
        seed: The same seed gives the same examples.
        stream: Different streams of a seed have nothing in common.
    """

    digits: ImageSet
    compose: Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray]
    num_digits: int
    seed: int
    stream: int = TRAIN

    def __post_init__(self) -> None:
        if self.digits.is_multi_label or self.digits.images.ndim != 3:
            raise ValueError("examples are made from grey images with one class each")
        if self.num_digits == 2 and len(np.unique(self.digits.labels)) < 2:
            raise ValueError("pairs of different classes need digits of at least two classes; give more digits")

    def __call__(self, indices: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of the examples with these numbers: int64 (B,) of single digits, else bool (B, J)."""
        digits, uniform = self._draw(indices, epoch)
        made = self.compose([self.digits.images[chosen] for chosen in digits], uniform)
        if self.num_digits == 1:
            return made, self.digits.labels[indices]
        classes = np.zeros((len(indices), self.digits.num_classes), dtype=bool)
        for chosen in digits:
            classes[np.arange(len(indices)), self.digits.labels[chosen]] = True
        return made, classes

    def apart(self, indices: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The digits of these examples, each where it is there but alone: images (B, n, h', w'), labels (B, n)."""
        digits, uniform = self._draw(indices, epoch)
        images = [self.digits.images[chosen] for chosen in digits]
        alone = [
            self.compose(
                [image if shown == number else np.zeros_like(image) for shown, image in enumerate(images)], uniform
            )
            for number in range(self.num_digits)
        ]
        return np.stack(alone, axis=1), np.stack([self.digits.labels[chosen] for chosen in digits], axis=1)

    def _draw(self, indices: np.ndarray, epoch: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Numbers of the digits of each example, (B,) for each of its places, and random numbers, (B, draws)."""
        uniform = _uniform(self.seed, self.stream, epoch, len(self.digits))[indices]
        if self.num_digits == 1:
            return [indices], uniform
        return [indices, self._partners(self.digits.labels[indices], uniform[:, 0])], uniform

    def _partners(self, labels: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Numbers of digits of other classes, each such digit as likely as the others."""
        by_class = np.argsort(self.digits.labels, kind="stable")
        counts = np.bincount(self.digits.labels, minlength=self.digits.num_classes)
        firsts = np.cumsum(counts) - counts
        places = (uniform * (len(by_class) - counts[labels])).astype(np.int64)  # among the others
        return by_class[np.where(places < firsts[labels], places, places + counts[labels])]


@dataclass(frozen=True, kw_only=True, eq=False)
class MadeSet(ImageSet):
    """Images that differ from epoch to epoch; `images` and `labels` are those of epoch 0."""

    maker: Maker

    @classmethod
    def of(cls, maker: Maker) -> "MadeSet":
        """One example for each digit."""
        return cls(**vars(_fixed(maker)), maker=maker)

    def read(self, indices: "Sequence[int] | np.ndarray", epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels of an epoch."""
        return super().read(indices) if epoch == 0 else self.maker(np.asarray(indices), epoch)

    def subset(self, indices: "Sequence[int] | np.ndarray") -> "MadeSet":
        """Examples made anew from the digits with these numbers: no digit of one part is met in another part."""
        return MadeSet.of(replace(self.maker, digits=self.maker.digits.subset(indices)))


def make_sets(name: str, train: ImageSet, test: ImageSet | None, *, seed: int = 0) -> tuple[ImageSet, ImageSet | None]:
    """Training examples, new in every epoch, from training digits and fixed test examples from test digits.

    Args:
        name: "multimnist", "side-by-side" or "affnist".
        train: Grey images with one class each.
        test: The same, or None.
        seed: The same seed gives the same examples.

    Example:
        >>> from torchcaps.data import load_data
        >>> digits = load_data("digits")
        >>> pairs, _ = make_sets("multimnist", digits.train, None)
        >>> pairs.images.shape, int(pairs.labels[0].sum())
        ((5000, 36, 36), 2)
    """
    num_digits, compose_train, compose_test = RECIPES[check_choice("name", name, RECIPES)]
    check_count("seed", seed, least=0)
    made = MadeSet.of(Maker(digits=train, compose=compose_train, num_digits=num_digits, seed=seed))
    if test is None:
        return made, None
    return made, _fixed(Maker(digits=test, compose=compose_test, num_digits=num_digits, seed=seed, stream=TEST))


def overlap(digits: Sequence[np.ndarray], uniform: np.ndarray) -> np.ndarray:
    """Two digits, each shifted by up to 4 pixels, one over the other."""
    first, second = digits
    return np.maximum(
        _placed(first, uniform[:, 1], uniform[:, 2], MULTIMNIST_SHIFT),
        _placed(second, uniform[:, 3], uniform[:, 4], MULTIMNIST_SHIFT),
    )


def put_beside(digits: Sequence[np.ndarray], uniform: np.ndarray) -> np.ndarray:
    """Two digits next to each other."""
    return np.concatenate(digits, axis=2)


def move(digits: Sequence[np.ndarray], uniform: np.ndarray) -> np.ndarray:
    """A digit anywhere on a field that is 12 pixels wider and higher."""
    return _placed(digits[0], uniform[:, 1], uniform[:, 2], AFFNIST_SHIFT)


def distort(digits: Sequence[np.ndarray], uniform: np.ndarray) -> np.ndarray:
    """A digit stretched, sheared and turned about its centre, then moved as in `move`.

    A point p, seen from the centre, goes to R(a) [[1, k], [0, 1]] diag(s, t) p, with a within 20 degrees, k within 0.2,
    s and t between 0.8 and 1.2.
    """
    import torch

    margin = ((0, 0), (AFFNIST_SHIFT, AFFNIST_SHIFT), (AFFNIST_SHIFT, AFFNIST_SHIFT))
    images_B1HW = torch.from_numpy(np.pad(digits[0], margin)).unsqueeze(1).float()
    down_B, right_B = (torch.from_numpy(_whole(uniform[:, column], AFFNIST_SHIFT)) for column in (1, 2))
    angle, shear = (2 * uniform[:, 3] - 1) * ROTATION, (2 * uniform[:, 4] - 1) * SHEAR
    across, down = (STRETCH[0] + (STRETCH[1] - STRETCH[0]) * uniform[:, column] for column in (5, 6))
    cosine, sine = np.cos(angle), np.sin(angle)
    rows = (
        ((cosine + shear * sine) / across, (sine - shear * cosine) / across),
        (-sine / down, cosine / down),
    )
    inverse_maps_B22 = torch.from_numpy(np.stack([np.stack(row, axis=1) for row in rows], axis=1)).float()
    return warp(images_B1HW, inverse_maps_B22, down_B, right_B).squeeze(1).round().to(torch.uint8).numpy()


# Name: digits in an example, how training and how test examples are put together.
RECIPES = {
    "multimnist": (2, overlap, overlap),
    "side-by-side": (2, put_beside, put_beside),
    "affnist": (1, move, distort),
}


def _fixed(maker: Maker) -> ImageSet:
    """The examples of epoch 0."""
    numbers = np.arange(len(maker.digits))
    chunks = [maker(numbers[start : start + CHUNK], 0) for start in range(0, len(numbers), CHUNK)]
    images, labels = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    return ImageSet(images=images, labels=labels, class_names=maker.digits.class_names)


@lru_cache(maxsize=4)
def _uniform(seed: int, stream: int, epoch: int, num: int) -> np.ndarray:
    """The random numbers of all examples of an epoch, (num, draws)."""
    uniform = np.random.default_rng([seed, stream, epoch]).random((num, NUM_DRAWS))
    uniform.flags.writeable = False
    return uniform


def _whole(uniform: np.ndarray, shift: int) -> np.ndarray:
    """Whole numbers from -shift to shift, each as likely as the others."""
    return (uniform * (2 * shift + 1)).astype(np.int64) - shift


def _placed(digits_BHW: np.ndarray, down: np.ndarray, right: np.ndarray, shift: int) -> np.ndarray:
    """Each digit on a black field that is wider by `shift` on every side, moved down and to the right."""
    num, height, width = digits_BHW.shape
    padded = np.pad(digits_BHW, ((0, 0), (2 * shift, 2 * shift), (2 * shift, 2 * shift)))
    rows_BH = shift - _whole(down, shift)[:, None] + np.arange(height + 2 * shift)
    columns_BW = shift - _whole(right, shift)[:, None] + np.arange(width + 2 * shift)
    return padded[np.arange(num)[:, None, None], rows_BH[:, :, None], columns_BW[:, None, :]]
