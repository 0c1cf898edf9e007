"""`torchcaps attack` as a user runs it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.cli import main
from torchcaps.models import create_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two saved models and images for them."""
    folder = tmp_path_factory.mktemp("attack")
    for number, name in enumerate(("cnn-small", "capsnet-small")):
        torch.manual_seed(number)
        create_model(name, image_shape=(1, 20, 20), num_classes=2).save_pretrained(folder / name)
    images = np.random.default_rng(0).integers(0, 255, (12, 20, 20)).astype(np.uint8)
    labels = np.arange(12) % 2
    np.savez(folder / "data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return folder


def test_table_and_picture(saved, tmp_path, capsys):
    command = ["attack", str(saved / "cnn-small"), "--data", str(saved / "data.npz")]
    options = ["--epsilons", "0", "0.1", "--num-images", "8", "--out", str(tmp_path / "new" / "curve.png")]
    assert main([*command, *options, "--transfer", str(saved / "capsnet-small"), "--methods", "fgsm"]) == 0
    told = capsys.readouterr().out
    assert "accuracy of attacks, %" in told
    assert "8 test images; gradient of a pixel: mean size" in told
    with Image.open(tmp_path / "new" / "curve.png") as picture:
        assert min(picture.size) > 400


def test_json_says_everything(saved, tmp_path, capsys):
    command = ["attack", str(saved / "cnn-small"), "--data", str(saved / "data.npz"), "--json", "--targeted"]
    assert main([*command, "--methods", "fgsm", "bim", "--epsilons", "0", "0.2", "--out", str(tmp_path / "c.png")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["images"], result["targeted"]) == (12, True)
    outcomes = result["outcomes"]
    assert [(outcome["method"], outcome["epsilon"]) for outcome in outcomes] == [
        *(("fgsm", 0.0), ("fgsm", 0.2)),
        *(("bim", 0.0), ("bim", 0.2)),
    ]
    assert outcomes[0]["accuracy"] == outcomes[2]["accuracy"]
    assert outcomes[3]["success"] > outcomes[2]["success"]
    assert 0 <= result["gradient"]["zero_share"] < 1
    assert result["environment"]["versions"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "DATA", "--epsilons", "2"], "epsilon must lie in [0, 1]"),
        (["--data", "DATA", "--num-images", "0"], "--num-images must be at least 1"),
        ([], "give --data NAME or PATH"),
        (["--data", "digits"], "digits has 10 classes and the model 2"),
        (["--data", "DATA", "--transfer", "capsnet-small-mnist"], "knows other classes"),
    ],
)
def test_wrong_input_ends_in_a_sentence(saved, tmp_path, capsys, arguments, sentence):
    arguments = [str(saved / "data.npz") if argument == "DATA" else argument for argument in arguments]
    assert main(["attack", str(saved / "cnn-small"), *arguments, "--out", str(tmp_path / "curve.png")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "curve.png").exists()
