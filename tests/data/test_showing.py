"""Which images of a set are shown, and what is said of them."""

import numpy as np

from torchcaps.data import ImageSet
from torchcaps.data.showing import caption, even_choice


def make_set(labels, factors=None) -> ImageSet:
    labels = np.asarray(labels)
    images = np.zeros((len(labels), 6, 8), np.uint8)
    return ImageSet(images=images, labels=labels, class_names=("cat", "dog", "cow"), factors=factors or {})


def test_every_class_has_its_share():
    image_set = make_set([0] * 10 + [1] * 2 + [2] * 50)
    assert even_choice(image_set, 12) == [0, 2, 5, 7, 10, 11, 12, 24, 37, 49]
    assert even_choice(image_set, 1) == [0, 10, 12]  # never a class without any
    assert len(even_choice(image_set, 10**6)) == 62


def test_captions():
    poses = {"instance": [7, -1], "elevation": [1, -1], "azimuth": [34, -1], "lighting": [0, 2]}
    image_set = make_set([1, 0], factors={name: np.array(values) for name, values in poses.items()})
    assert caption(image_set, 0) == "dog\n#7 e35 a340 l0"
    assert caption(image_set, 1) == "cat\nl2"
    several = make_set(np.array([[True, False, True], [False, False, False]]))
    assert [caption(several, number) for number in (0, 1)] == ["cat + cow", "none"]
