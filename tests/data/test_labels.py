"""Labels of data become those of a model."""

from dataclasses import replace

import numpy as np
import pytest

from support.image_sets import make_set
from torchcaps.data.labels import with_classes


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
