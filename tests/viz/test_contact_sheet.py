"""A contact sheet holds the images, and writes below them what they are."""

import numpy as np
import pytest

from torchcaps.data import ImageSet
from torchcaps.viz.contact_sheet import contact_sheet


def make_set(labels, shape) -> ImageSet:
    labels = np.asarray(labels)
    images = np.arange(len(labels) * int(np.prod(shape))).reshape(-1, *shape).astype(np.uint8)
    return ImageSet(images=images, labels=labels, class_names=("cat", "dog", "cow"))


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
