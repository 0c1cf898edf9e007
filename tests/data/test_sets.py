"""Image sets."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from support.image_sets import make_set, numbers
from torchcaps.data import DataSet, ImageSet


def test_torch_can_load_it():
    image_set = make_set([0, 1, 2, 1])
    images, labels = next(iter(DataLoader(image_set, batch_size=4)))
    assert images.dtype == torch.uint8
    assert images.shape == (4, 4, 5)
    assert labels.tolist() == [0, 1, 2, 1]
    several = make_set(np.array([[True, False], [True, True]]))
    assert several.is_multi_label
    _, labels = next(iter(DataLoader(several, batch_size=2)))
    assert labels.tolist() == [[True, False], [True, True]]


def test_iterating_ends():
    assert [label for _, label in make_set([0, 1, 2, 1])] == [0, 1, 2, 1]


def test_a_subset_is_a_copy_in_the_order_asked_for():
    whole = make_set([0, 1, 2, 1])
    part = whole.subset([3, 0])
    assert numbers(part) == [3, 0]
    assert part.labels.tolist() == [1, 0]
    assert part.class_names == whole.class_names  # also those it has no image of
    part.images[:] = 99
    assert numbers(whole) == [0, 1, 2, 3]
    for wrong in ([], [0.5], [[0, 1]], [True, False, True, False]):
        with pytest.raises(ValueError, match="non-empty list of image numbers"):
            whole.subset(wrong)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 5), np.float32), np.zeros(2, np.int64), "images must be uint8"),
        (np.zeros((2, 20), np.uint8), np.zeros(2, np.int64), "images must be uint8 of shape"),
        (np.zeros((0, 4, 5), np.uint8), np.zeros(0, np.int64), "not empty"),
        (np.zeros((2, 3, 32, 32), np.uint8), np.zeros(2, np.int64), r"channels come last: use images.transpose"),
        (np.zeros((2, 4, 5), np.uint8), np.zeros(3, np.int64), "2 images but 3 labels"),
        (np.zeros((2, 4, 5), np.uint8), np.array([0, 2]), "must lie in 0 to 1, but image 1 has label 2"),
        (np.zeros((2, 4, 5), np.uint8), np.array([-1, 0]), "must lie in 0 to 1, but image 0 has label -1"),
        (np.zeros((2, 4, 5), np.uint8), np.zeros(2, np.float32), "labels must be int64 .* got float32"),
        (np.zeros((2, 4, 5), np.uint8), np.zeros((2, 3), bool), r"J = 2 classes, got bool of shape \(2, 3\)"),
    ],
)
def test_wrong_sets_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ImageSet(images=images, labels=labels, class_names=("a", "b"))


def test_training_and_test_must_be_alike():
    train = make_set([0, 1])
    for test, message in (
        (make_set([0, 1, 2]), "same classes"),
        (make_set(np.eye(2, dtype=bool)), "kind of labels"),
        (make_set([0, 1], shape=(4, 6)), r"shape \(4, 5\) but test images \(4, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            DataSet(name="mine", train=train, test=test, origin="", terms="")
    assert DataSet(name="mine", train=train, test=None, origin="", terms="").class_names == train.class_names


def test_factors_go_with_the_images():
    images, labels = np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.int64)
    whole = ImageSet(images=images, labels=labels, class_names=("a",), factors={"azimuth": np.array([4, -1, 6])})
    assert whole.subset([2, 0]).factors["azimuth"].tolist() == [6, 4]
    for wrong in (np.array([1, 2]), np.array([1.0, 2.0, 3.0]), np.zeros((3, 1), np.int64)):
        with pytest.raises(ValueError, match=r"factor 'azimuth' must be int64 of shape \(3,\), one value per image"):
            ImageSet(images=images, labels=labels, class_names=("a",), factors={"azimuth": wrong})
