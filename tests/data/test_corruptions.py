"""Corruptions: each gets stronger, comes again with its seed, and does what its name says."""

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.data.corruptions import STRENGTHS, corrupted

PICTURES = load_data("digits").test.images[:40]


@pytest.mark.parametrize("kind", STRENGTHS)
def test_stronger_is_farther_away_and_the_same_seed_gives_the_same(kind):
    distances = []
    for strength in STRENGTHS[kind]:
        changed = corrupted(PICTURES, kind, strength)
        assert changed.dtype == np.uint8
        assert changed.shape == PICTURES.shape
        assert np.array_equal(changed, corrupted(PICTURES, kind, strength))
        distances.append(np.abs(changed.astype(float) - PICTURES).mean())
    assert 0 < distances[0] < distances[1] < distances[2]
    coloured = np.repeat(PICTURES[:3, ..., None], 3, axis=3)
    assert corrupted(coloured, kind, STRENGTHS[kind][0]).shape == (3, 28, 28, 3)


def test_no_frame_comes_from_outside():
    """A picture of one value stays what it is, however it is turned and moved."""
    plain = np.full((4, 32, 32), 90, np.uint8)
    for kind in ("rotated", "shifted", "blur", "contrast"):
        assert np.abs(corrupted(plain, kind, STRENGTHS[kind][2]).astype(int) - 90).max() <= 1


def test_shifts_are_whole_pixels_along_a_diagonal():
    picture = np.zeros((8, 32, 32), np.uint8)
    picture[:, 16, 16] = 255
    places = {tuple(np.argwhere(image == image.max())[0]) for image in corrupted(picture, "shifted", 0.125)}
    assert places <= {(row, column) for row in (12, 20) for column in (12, 20)}
    assert len(places) > 1


def test_pictures_of_another_type_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        corrupted(PICTURES / 255, "noise", 0.1)
    with pytest.raises(ValueError, match="kind must be one of"):
        corrupted(PICTURES, "fog", 0.1)
