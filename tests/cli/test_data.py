"""smallNORB's pipeline and the `data` command, as a user runs them."""

import json

import numpy as np
import pytest

from torchcaps.cli import main
from torchcaps.data.norb import write_matrix


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder of smallNORB's files with five categories that differ in their stripes."""
    folder, generator = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for part, num in (("46789-training", 60), ("01235-testing", 20)):
        labels = np.arange(num) % 5
        waves = 100 + 80 * np.sin(np.arange(24) * (labels[:, None] + 1) / 2.5)
        images = waves[:, None, :, None] + generator.normal(0, 8, (num, 2, 24, 24))
        base = f"smallnorb-5x{part}"
        write_matrix(folder / f"{base}-dat.mat", images.clip(0, 255).astype(np.uint8))
        write_matrix(folder / f"{base}-cat.mat", labels.astype(np.int32))
        write_matrix(folder / f"{base}-info.mat", np.full((num, 4), -1, np.int32))
    return folder


def test_the_pipeline_of_smallnorb(pairs, tmp_path, capsys):
    run = str(tmp_path / "run")
    sizes = ["--image-size", "12", "12", "--crop", "8", "8", "--shift", "0"]
    light = ["--standardise", "--brightness", "0.2", "--contrast", "0.3"]
    model = ["--model", "cnn-small", "--epochs", "8", "--batch-size", "16", "--learning-rate", "0.01"]
    assert main(["train", "--data", str(pairs), "--out", run, *sizes, *light, *model]) == 0
    capsys.readouterr()
    found = {}
    for crops in (1, 5, 25):
        assert main(["evaluate", run, "--crops", str(crops), "--json"]) == 0
        found[crops] = json.loads(capsys.readouterr().out)
        assert found[crops]["crops"] == crops
        assert found[crops]["accuracy"] >= 0.8
    assert found[1]["accuracy"] == json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"]
    assert main(["evaluate", run, "--crops", "26"]) == 2
    assert "have 25 different crops of (8, 8), 26 were asked for" in capsys.readouterr().err
    assert main(["evaluate", run, "--crops", "0"]) == 2
    assert "num must be at least 1" in capsys.readouterr().err
