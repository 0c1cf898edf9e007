"""`torchcaps show` as a user runs it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.inputs.texts import TextEncoding
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


def test_the_tree_of_a_matrix_network(tmp_path, capsys):
    torch.manual_seed(0)
    options = {"image_shape": (1, 17, 17), "num_classes": 2, "types": (2, 2, 2)}
    create_model("matrix-capsnet-small", **options).save_pretrained(tmp_path / "model")
    Image.fromarray(np.full((17, 17), 90, np.uint8)).save(tmp_path / "grey.png")
    arguments = ["parse-tree", "--image", str(tmp_path / "grey.png"), "--out", str(tmp_path)]
    assert main(["show", str(tmp_path / "model"), *arguments]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "parse-tree.png")]


@pytest.fixture(scope="module")
def saved_text(tmp_path_factory):
    """A folder with a saved model of texts and a table of texts."""
    folder = tmp_path_factory.mktemp("show-text")
    torch.manual_seed(0)
    model = create_model("text-capsule-a", num_tokens=6, num_classes=2, channels=4, types=(2, 2), pose_size=4)
    model.preprocessing = TextEncoding(tokeniser="words", vocabulary=("a", "dull", "fine", "film"))
    model.labels = ("bad", "good")
    model.save_pretrained(folder / "model")
    lines = ["label\ttext", "bad\ta dull film", "good\ta fine film", "good\tfine fine fine"]
    (folder / "texts.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_the_words_of_a_text(saved_text, tmp_path, capsys):
    arguments = ["show", str(saved_text / "model"), "--out", str(tmp_path), "--format", "svg"]
    assert main([*arguments, "--text", "a fine but dull film"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "words.svg")]
    assert main([*arguments, "words", "confusion", "--data", str(saved_text / "texts.tsv"), "--number", "2"]) == 0
    assert len(capsys.readouterr().out.split()) == 2
    assert main([*arguments, "votes"]) == 2
    assert "takes texts; votes cannot be drawn of them" in capsys.readouterr().err


def test_help_says_what_to_give(capsys):
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    usage = capsys.readouterr().out
    assert "RUN" in usage.split("options")[0]
    assert "STR" not in usage.split("--text")[0]


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


def test_poses_of_a_test_set(saved, tmp_path, capsys):
    arguments = ["show", str(saved), "poses", "--data", str(saved / "data.npz"), "--out", str(tmp_path)]
    assert main([*arguments, "--number", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["poses", "poses-directions", "poses-entries"]  # a network that nobody trained changes no property
    assert lines[:3] == [str(tmp_path / f"{name}.png") for name in names]
    assert lines[3] == "capsnet-small, poses of 12 images, mean over classes:"
    assert any(line.startswith("slant") for line in lines[4:])  # of noise it varies, as thickness does not
    create_model("cnn-small", image_shape=(1, 20, 20), num_classes=2).save_pretrained(tmp_path / "cnn")
    assert main([*arguments, "--rival", str(tmp_path / "cnn")]) == 0
    assert "cnn-small, principal directions of its features:" in capsys.readouterr().out
    assert main([*arguments, "--number", "12"]) == 2
    assert "--number must be between 0 and 11" in capsys.readouterr().err
