"""Digits beside garments: classes, sides, what is new in an epoch, and parts that have nothing in common."""

import numpy as np
import pytest

from torchcaps.data import split_validation
from torchcaps.data.made_pairs import SHAPES, make_pairs
from torchcaps.data.sets import ImageSet


def pictures(first: int, num: int = 400) -> ImageSet:
    """Each picture is one value of its own, the labels in turn."""
    values = np.arange(first, first + num)
    images = np.broadcast_to((values % 250)[:, None, None], (num, 28, 28)).astype(np.uint8)
    images[:, 0, 0], images[:, 0, 1] = values // 256, values % 256  # which it is
    return ImageSet(images=images, labels=np.arange(num) % 10, class_names=tuple(f"{first}-{n}" for n in range(10)))


def numbers(images: np.ndarray, half: int) -> set[int]:
    return set((images[:, 0, 28 * half].astype(int) * 256 + images[:, 0, 28 * half + 1]).tolist())


@pytest.mark.parametrize("num", SHAPES)
def test_every_class_is_there_and_names_say_what_is_seen(num):
    train, test = make_pairs(num, (pictures(0), pictures(1000)), (pictures(2000), pictures(3000)))
    assert train.num_classes == len(set(train.class_names)) == num
    assert train.images.shape[1:] == (28, 56)
    assert test.class_names[0] == "1000-0 3000-0"
    digits, garments, sides = SHAPES[num]
    for image, label in zip(train.images[:50], train.labels[:50], strict=True):
        pair, side = label % (digits * garments), label // (digits * garments)
        values = [int(image[0, 28 * half]) * 256 + int(image[0, 28 * half + 1]) for half in (0, 1)]
        digit, garment = values[::-1] if side else values
        assert side < sides
        assert digit % 10 == pair // garments
        assert (garment - 2000) % 10 == pair % garments


def test_epochs_differ_in_partners_and_the_test_does_not():
    train, test = make_pairs(200, (pictures(0), pictures(1000)), (pictures(2000), pictures(3000)))
    chosen = np.arange(20)
    first, second = train.read(chosen, 1)[0], train.read(chosen, 2)[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(first, train.read(chosen, 1)[0])
    assert np.array_equal(first[3:4], train.read([3], 1)[0])
    assert np.array_equal(test.read(chosen, 1)[0], test.images[chosen])


def test_parts_have_no_picture_in_common():
    train, test = make_pairs(100, (pictures(0), pictures(1000)), (pictures(2000), pictures(3000)))
    part, held_out = split_validation(train, 0.25, 0)
    for half in (0, 1):
        seen = numbers(np.concatenate([part.read(np.arange(len(part)), epoch)[0] for epoch in range(3)]), half)
        assert not seen & numbers(held_out.images, half)
        assert not seen & numbers(test.images, half)


def test_the_smaller_set_tells_how_many():
    train, _ = make_pairs(100, (pictures(0, 100), None), (pictures(2000, 300), None))
    assert len(train) == 100
