"""Validation data and fewer examples, every class in its share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.image_sets import make_set, numbers
from torchcaps.data import choose_some, split_validation


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
