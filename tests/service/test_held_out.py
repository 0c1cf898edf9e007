"""Test data of what a model was trained on."""

from pathlib import Path

import numpy as np

from torchcaps.data import load_data
from torchcaps.models import create_model
from torchcaps.service.held_out import held_out


def digits_model(dataset: str | None, num_classes: int = 10):
    model = create_model("cnn-small", image_shape=(1, 28, 28), num_classes=num_classes)
    model.card["dataset"] = dataset
    return model


def test_embedded_digits_stand_for_those_of_mnist():
    expected = load_data("digits").test
    for dataset in ("digits", "mnist"):
        assert np.array_equal(held_out(digits_model(dataset)).images, expected.images)


def test_there_is_none_for_other_classes_unknown_data_and_paths(tmp_path, monkeypatch):
    assert held_out(digits_model("digits", num_classes=3)) is None
    assert held_out(digits_model(None)) is None
    assert held_out(digits_model("no such data")) is None
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((20, 28, 28), np.uint8), y_train=np.arange(20) % 10)
    assert held_out(digits_model(str(tmp_path / "mine.npz"))) is None  # a card may come from anybody
    monkeypatch.setenv("TORCHCAPS_DATA", str(Path(tmp_path) / "nothing"))
    assert held_out(digits_model("fashion-mnist")) is None
