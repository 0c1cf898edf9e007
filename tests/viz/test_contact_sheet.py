"""Which images a contact sheet takes, and what it writes below them."""

import numpy as np
import pytest

from torchcaps.data import ImageSet
from torchcaps.viz.contact_sheet import caption, choose, contact_sheet


def make_set(labels, shape=(6, 8), factors=None) -> ImageSet:
    labels = np.asarray(labels)
    images = np.arange(len(labels) * int(np.prod(shape))).reshape(-1, *shape).astype(np.uint8)
    return ImageSet(images=images, labels=labels, class_names=("cat", "dog", "cow"), factors=factors or {})


def test_every_class_has_its_share():
    image_set = make_set([0] * 10 + [1] * 2 + [2] * 50)
    assert choose(image_set, 12) == [0, 2, 5, 7, 10, 11, 12, 24, 37, 49]
    assert choose(image_set, 1) == [0, 10, 12]  # never a class without any
    assert len(choose(image_set, 10**6)) == 62


def test_captions():
    poses = {"instance": [7, -1], "elevation": [1, -1], "azimuth": [34, -1], "lighting": [0, 2]}
    image_set = make_set([1, 0], factors={name: np.array(values) for name, values in poses.items()})
    assert caption(image_set, 0) == "dog\n#7 e35 a340 l0"
    assert caption(image_set, 1) == "cat\nl2"
    several = make_set(np.array([[True, False, True], [False, False, False]]))
    assert [caption(several, number) for number in (0, 1)] == ["cat + cow", "none"]


@pytest.mark.parametrize(("shape", "width"), [((6, 8), 8), ((6, 8, 1), 8), ((6, 8, 2), 16), ((6, 8, 3), 8)])
def test_the_page_holds_the_images(shape, width):
    image_set = make_set([0, 1, 2, 0], shape)
    figure = contact_sheet(image_set, num_images=6, columns=3, title="animals")
    axes = figure.axes[0]
    page = axes.get_images()[0].get_array()
    first = image_set.images[0]
    expected = np.concatenate([first[..., 0], first[..., 1]], axis=1) if shape[-1] == 2 else first
    if expected.ndim == 2:
        expected = expected[..., None]
    assert np.array_equal(page[:6, :width], np.broadcast_to(expected, (6, width, 3)))
    assert page.shape[1] == 3 * width + 2 * 2
    assert [text.get_text() for text in axes.texts] == ["cat", "cat", "dog", "cow"]
    assert figure.get_suptitle() == "animals"
