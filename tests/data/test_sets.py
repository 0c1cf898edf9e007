"""Image sets and the validation split."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torchcaps.data import DataSet, ImageSet, choose_some, split_validation
from torchcaps.data.labels import with_classes


def make_set(labels, num_classes=None, shape=(4, 5)) -> ImageSet:
    """A set whose images carry their own number."""
    labels = np.asarray(labels)
    images = np.zeros((len(labels), *shape), dtype=np.uint8)
    images[:, 0, 0] = np.arange(len(labels)) % 256
    if num_classes is None:
        num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    return ImageSet(images=images, labels=labels, class_names=tuple(f"class {n}" for n in range(num_classes)))


def numbers(image_set: ImageSet) -> list[int]:
    return image_set.images[:, 0, 0].tolist()


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


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda counts: max(counts) > 1),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_the_split_is_stratified_and_loses_nothing(counts, fraction, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    train, validation = split_validation(make_set(labels, len(counts)), fraction, seed)
    assert sorted(numbers(train) + numbers(validation)) == list(range(len(labels)))
    assert numbers(train) == sorted(numbers(train))
    assert numbers(validation) == sorted(numbers(validation))
    for label, count in enumerate(counts):
        held_out = int((validation.labels == label).sum())
        assert held_out <= max(count - 1, 0)
        if count > 1:
            assert held_out >= 1
            assert abs(held_out - fraction * count) <= 1


def test_the_seed_decides_the_split():
    image_set = make_set(np.arange(200) % 4)
    first, again, other = (numbers(split_validation(image_set, 0.1, seed)[1]) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(first) == 20


def test_images_with_several_classes_are_split_by_their_rarest():
    labels = np.zeros((60, 3), dtype=bool)
    labels[:50, 0] = True  # all but the last ten are common
    labels[:10, 1] = True  # ten of them also have the rarer class
    labels[10:12, 2] = True  # and two the rarest; ten have none
    _, validation = split_validation(make_set(labels), 0.5, 0)
    assert validation.labels.sum(0).tolist() == [25, 5, 1]
    assert (~validation.labels.any(1)).sum() == 5


def test_impossible_splits_are_refused():
    image_set = make_set([0, 1, 2])
    with pytest.raises(ValueError, match="no class has two examples"):
        split_validation(image_set, 0.5, 0)
    for fraction in (0, 1, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fraction must be"):
            split_validation(make_set([0, 0]), fraction, 0)


def test_factors_go_with_the_images():
    images, labels = np.zeros((3, 4, 4), np.uint8), np.zeros(3, np.int64)
    whole = ImageSet(images=images, labels=labels, class_names=("a",), factors={"azimuth": np.array([4, -1, 6])})
    assert whole.subset([2, 0]).factors["azimuth"].tolist() == [6, 4]
    for wrong in (np.array([1, 2]), np.array([1.0, 2.0, 3.0]), np.zeros((3, 1), np.int64)):
        with pytest.raises(ValueError, match=r"factor 'azimuth' must be int64 of shape \(3,\), one value per image"):
            ImageSet(images=images, labels=labels, class_names=("a",), factors={"azimuth": wrong})


def test_some_examples_keep_the_shares_of_the_classes():
    whole = make_set([0] * 100 + [1] * 60 + [2] * 40)
    few, more = (choose_some(whole, num, seed=3) for num in (20, 100))
    assert np.bincount(few.labels).tolist() == [10, 6, 4]
    assert np.bincount(more.labels).tolist() == [50, 30, 20]
    assert set(numbers(few)) < set(numbers(more))
    assert numbers(more) == sorted(numbers(more))
    assert numbers(choose_some(whole, 20, seed=4)) != numbers(few)
    assert choose_some(whole, 200, seed=3) is whole
    with pytest.raises(ValueError, match="num must be at least 1"):
        choose_some(whole, 0, seed=0)


def test_classes_are_matched_by_name():
    some = replace(make_set([0, 1, 1]), class_names=("dog", "cat"))
    matched = with_classes(some, ("bird", "cat", "dog"), "pets")
    assert (matched.labels.tolist(), matched.class_names) == ([2, 1, 1], ("bird", "cat", "dog"))
    several = replace(make_set(np.eye(2, dtype=bool)), class_names=("dog", "cat"))
    assert with_classes(several, ("bird", "cat", "dog"), "pets").labels.tolist() == [[0, 0, 1], [0, 1, 0]]
    with pytest.raises(ValueError, match="pets has 2 classes and the model 2, and it has none that is called 'dog'"):
        with_classes(some, ("bird", "cat"), "pets")


def test_numbers_stand_for_any_names():
    some = replace(make_set([0, 1, 1]), class_names=("0", "1"))
    assert with_classes(some, ("b", "a"), "idx files") is some
    with pytest.raises(ValueError, match="none that is called '0'"):
        with_classes(some, ("c", "b", "a"), "idx files")
