"""Properties of drawings are those they were drawn with."""

import numpy as np
import pytest

from support.drawings import ring, stripe
from torchcaps.inspection import PROPERTIES, image_properties


def measured(image: np.ndarray) -> dict[str, float]:
    return dict(zip(PROPERTIES, image_properties(image[None])[0].tolist(), strict=True))


@pytest.mark.parametrize("slant", [-0.5, -0.2, 0.0, 0.3, 0.6])
@pytest.mark.parametrize("thickness", [2.0, 3.5, 5.0])
def test_slant_and_thickness_of_strokes(slant, thickness):
    found = measured(stripe(slant=slant, thickness=thickness))
    assert found["slant"] == pytest.approx(slant, abs=0.01)
    # the ends of a stroke are outline too: its points lie a little nearer to one than w / 4
    assert found["thickness"] == pytest.approx(thickness, rel=0.13)
    assert found["holes"] == 0


def test_thickness_grows_with_the_stroke():
    """Along a slanted outline the grid of a quarter of a pixel, which an upright one may fall into, averages out."""
    widths = np.arange(2, 6, 0.25)
    strokes = np.stack([stripe(slant=0.17, thickness=width) for width in widths])
    found = image_properties(strokes)[:, PROPERTIES.index("thickness")]
    assert (np.diff(found) > 0.1).all()
    assert np.corrcoef(widths, found)[0, 1] > 0.999


def test_place_and_size():
    found = measured(stripe(thickness=4.0, height=12.0, row=15.0, column=23.5))
    assert (found["row"], found["column"]) == pytest.approx((15.0, 23.5), abs=0.05)
    assert (found["width"], found["height"]) == pytest.approx((4.0, 12.0), abs=0.3)


def test_the_box_of_a_slanted_stroke_is_wider():
    upright, slanted = measured(stripe(height=20.0)), measured(stripe(height=20.0, slant=0.5))
    assert slanted["width"] - upright["width"] == pytest.approx(10, abs=0.7)
    assert slanted["height"] == pytest.approx(upright["height"], abs=0.3)


def test_elongation_of_round_and_long_things():
    assert measured(ring())["elongation"] == pytest.approx(0, abs=0.01)
    # a bar of a x b has standard deviations a / sqrt(12) and b / sqrt(12)
    assert measured(stripe(thickness=5.0, height=20.0))["elongation"] == pytest.approx(1 - 5 / 20, abs=0.02)


@pytest.mark.parametrize(("radius", "thickness"), [(6.0, 2.0), (9.0, 4.0)])
def test_holes(radius, thickness):
    assert measured(ring(radius=radius, thickness=thickness))["holes"] == pytest.approx(
        np.pi * (radius - thickness / 2) ** 2, rel=0.06
    )


def test_an_open_ring_has_no_hole():
    image = ring(radius=8.0, thickness=3.0)
    image[:20, 18:23] = 0
    assert measured(image)["holes"] == 0


def test_brightness_does_not_matter():
    image = stripe(slant=0.3, thickness=3.0)
    assert measured(0.2 * image) == pytest.approx(measured(image))


def test_what_is_no_thing_has_no_properties():
    assert np.isnan(image_properties(np.zeros((2, 9, 9)))).all()
    assert image_properties(np.zeros((0, 9, 9))).shape == (0, len(PROPERTIES))
    one = measured(np.eye(9)[4][None].repeat(9, 0) * np.eye(9)[4][:, None])  # a single pixel
    assert np.isnan(one["slant"])
    assert one["width"] == one["height"] == pytest.approx(1, abs=0.3)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match="one channel"):
        image_properties(np.zeros((2, 1, 9, 9)))
    with pytest.raises(ValueError, match="NaN"):
        image_properties(np.full((1, 9, 9), np.nan))
