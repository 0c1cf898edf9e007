"""Images are transformed as is said, and straight, even and parallel paths are told from others."""

import numpy as np
import pytest
import torch

from support.drawings import stripe
from torchcaps.inspection import PROPERTIES, follow, image_properties, straightness, transformed
from torchcaps.inspection.equivariance import TRANSFORMATIONS
from torchcaps.models import create_model
from torchcaps.models.base import ImageModel, ModelOutput


def moved(name: str, amount: float, **drawn: float) -> dict[str, float]:
    """Properties of a drawing after a transformation, less those before."""
    image = torch.from_numpy(stripe(thickness=4.0, height=16, **drawn))[None, None]
    before, after = (
        image_properties(picture[:, 0].numpy())[0] for picture in (image, transformed(image, name, amount))
    )
    return dict(zip(PROPERTIES, (after - before).tolist(), strict=True))


def test_images_are_transformed_as_is_said():
    assert moved("right", 1.5)["column"] == pytest.approx(1.5, abs=0.01)
    assert moved("down", -2.0)["row"] == pytest.approx(-2, abs=0.01)
    assert moved("sheared", 0.2)["slant"] == pytest.approx(0.2, abs=0.01)
    assert moved("scaled", 0.25)["height"] == pytest.approx(4, abs=0.3)
    # against the clock an upright stroke leans to the left
    assert moved("turned", 15.0)["slant"] == pytest.approx(-np.tan(np.radians(15)), abs=0.05)
    with pytest.raises(ValueError, match="one of right, down"):
        moved("bent", 1.0)


def test_nothing_is_changed_by_nothing():
    image = torch.rand(2, 1, 9, 12)
    for name in TRANSFORMATIONS:
        assert torch.allclose(transformed(image, name, 0.0), image, atol=1e-5)


def test_straight_even_and_parallel_paths():
    steps, labels = np.linspace(-1, 1, 9), np.array([0, 0, 1])
    along = np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    even = straightness(steps[None, :, None] * along[:, None] + 5, labels)
    assert (even.line, even.even, even.angle) == pytest.approx((1, 1, 0), abs=1e-4)
    uneven = straightness((steps**3)[None, :, None] * along[:, None], labels)
    assert uneven.line == pytest.approx(1)
    assert uneven.even < 0.9
    circle = np.stack([np.cos(np.pi * steps), np.sin(np.pi * steps), 0 * steps], axis=1)
    assert straightness(np.stack([circle] * 3), labels).line < 0.65
    opposite = straightness(steps[None, :, None] * (along * [[1], [-1], [1]])[:, None], np.zeros(3, int))
    assert opposite.angle > 90


class Moments(ImageModel):
    """Its poses are the centres of the images: they follow shifts along straight lines."""

    name, least_size = "moments", 1

    def __init__(self) -> None:
        super().__init__(image_shape=(1, 24, 24), num_classes=2)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, images, classes=None):
        mass = images.sum((1, 2, 3))
        rows = (images.sum((1, 3)) @ torch.arange(24.0)) / mass
        columns = (images.sum((1, 2)) @ torch.arange(24.0)) / mass
        poses = torch.stack([rows, columns], -1)[:, None].expand(-1, 2, -1)
        return ModelOutput(poses[..., 0], poses)


def test_what_follows_a_shift():
    images = np.stack([stripe(slant=s, thickness=3, height=8, size=24) for s in (-0.3, 0.1, 0.4)])
    raw, labels = (255 * images).round().astype(np.uint8), np.array([0, 0, 0])
    found = follow(Moments(), raw, labels)
    for name in ("right", "down"):
        assert (found[name].line, found[name].even, found[name].angle) == pytest.approx((1, 1, 0), abs=0.5)
        assert found[name].even > 0.99
    cnn = create_model("cnn-small", image_shape=(1, 24, 24), num_classes=2)
    assert set(follow(cnn, raw, labels, num_entries=2, num_steps=3)) == set(TRANSFORMATIONS)
