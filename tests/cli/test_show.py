"""`torchcaps show` as a user runs it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.models import create_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a saved model, and the images it is shown."""
    folder = tmp_path_factory.mktemp("show")
    torch.manual_seed(0)
    create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=2, class_size=4).save_pretrained(
        folder / "model"
    )
    images = np.random.default_rng(0).integers(0, 255, (12, 20, 20)).astype(np.uint8)
    labels = np.arange(12) % 2
    np.savez(folder / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    row = {"step": 1, "epoch": 1, "loss": 0.5, "accuracy": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_pictures_of_a_test_image(saved, tmp_path, capsys):
    names = ["couplings", "reconstructions", "confusion", "curves"]
    data = str(saved / "data.npz")
    assert main(["show", str(saved), *names, "--data", data, "--number", "3", "--out", str(tmp_path / "out")]) == 0
    paths = [str(tmp_path / "out" / f"{name}.png") for name in names]
    assert capsys.readouterr().out.split() == paths
    for path in paths:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 400


def test_pictures_of_an_image_file(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("torchcaps.viz.votes.FRAMES_PER_STEP", 1)
    monkeypatch.setattr("torchcaps.viz.votes.HELD_FRAMES", 1)
    Image.fromarray(np.full((20, 20), 90, np.uint8)).save(tmp_path / "grey.png")
    options = ["--image", str(tmp_path / "grey.png"), "--out", str(tmp_path), "--format", "svg"]
    assert main(["show", str(saved / "model"), "votes", "dimensions", "animation", *options]) == 0
    for name in ("votes", "dimensions"):
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    assert (tmp_path / "animation.gif").read_bytes().startswith(b"GIF")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["votes", "--number", "12", "--data", "DATA"], "--number must be between 0 and 11, got 12"),
        (["votes", "--image", "nowhere.png"], "nowhere.png"),
        (["votes"], "give --data NAME or PATH"),
    ],
)
def test_wrong_input_ends_in_a_sentence(saved, tmp_path, capsys, arguments, sentence):
    arguments = [str(saved / "data.npz") if argument == "DATA" else argument for argument in arguments]
    assert main(["show", str(saved), *arguments, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_course_of_training(saved, tmp_path, capsys):
    assert main(["show", str(saved / "model"), "curves", "--out", str(tmp_path / "out")]) == 2
    assert "give a run folder" in capsys.readouterr().err
