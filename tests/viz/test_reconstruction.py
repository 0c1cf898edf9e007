"""Reconstructions and moved capsules are those of the model's decoder."""

import numpy as np
import pytest
import torch

from torchcaps.inspection import move_entries, reconstruct
from torchcaps.models import create_model
from torchcaps.viz import capsule_dimensions, confusion_page, reconstructions, training_curves
from torchcaps.viz.report import to_picture


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, class_size=4).eval()


def shown(axes) -> np.ndarray:
    return np.asarray(axes.get_images()[0].get_array())


def test_reconstructions_stand_below_their_images(model):
    images = torch.rand(2, 1, 20, 20)
    figure = reconstructions(reconstruct(model, images), ["x", "y"])
    decoded = model(images).reconstruction.detach()
    for column in range(2):
        assert np.allclose(shown(figure.axes[column]), images[column, 0])
        assert np.allclose(shown(figure.axes[2 + column]), decoded[column, 0], atol=1e-5)
        difference = (images - decoded)[column, 0].abs()
        assert np.allclose(shown(figure.axes[4 + column]), difference, atol=1e-5)
        assert figure.axes[4 + column].get_title() == f"{difference.mean():.3f}"
    assert [axes.get_title() for axes in figure.axes[:2]] == ["true x", "true y"]


def test_a_page_of_dimensions(model):
    image = torch.rand(1, 20, 20)
    figure = capsule_dimensions(move_entries(model, image, offsets=(-0.1, 0.0)))
    assert len(figure.axes) == 4 * 2
    as_is = model(image[None]).reconstruction[0, 0].detach()
    assert np.allclose(shown(figure.axes[7]), as_is, atol=1e-5)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["-0.10", "as is"]


def test_curves_and_confusion():
    history = [{"epoch": 1, "loss": 0.5, "accuracy": 0.5}, {"epoch": 2, "loss": 0.25, "accuracy": 0.75}]
    errors, losses = training_curves(history, title="a run").axes
    assert errors.lines[0].get_ydata() == pytest.approx([50, 25])
    assert list(losses.lines[0].get_ydata()) == [0.5, 0.25]
    assert (errors.get_ylabel(), losses.get_xlabel()) == ("error, %", "epoch")
    page = confusion_page(np.array([[8, 2], [0, 10]]), ("a", "b"), title="counts")
    assert [text.get_text() for text in page.axes[0].texts] == ["8", "2", "10"]


def test_pictures_of_any_scale():
    fractions = np.random.default_rng(0).random((1, 4, 4)).astype(np.float32)
    assert np.array_equal(to_picture(fractions), fractions[0])
    assert to_picture(np.array([[0, 51], [102, 255]], np.uint8)).ravel() == pytest.approx([0, 0.2, 0.4, 1])
    assert to_picture(np.ones((2, 2), np.uint8)).max() == pytest.approx(1 / 255)
    standardised = np.stack([4 * fractions[0] - 2, np.full((4, 4), 9.0)])
    stretched = (fractions[0] - fractions.min()) / np.ptp(fractions)
    assert np.allclose(to_picture(standardised), stretched, atol=1e-6)
    assert np.array_equal(to_picture(np.full((3, 3), -1.0)), np.zeros((3, 3)))
