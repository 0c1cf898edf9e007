"""A disk that fills up ends a run in one sentence, and nothing good is lost."""

import subprocess

import numpy as np
import pytest

from torchcaps.cli import main
from torchcaps.training.checkpoint import load_latest
from training.test_engine import stripes


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB; a checkpoint of the small CNN takes 2.2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("not permitted to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_checkpoint(small_disk, tmp_path, capsys):
    images = stripes()
    data = {"x_train": images.images, "y_train": images.labels, "x_test": images.images, "y_test": images.labels}
    np.savez(tmp_path / "stripes.npz", **data)
    run = small_disk / "run"
    options = ["--data", str(tmp_path / "stripes.npz"), "--model", "cnn-small", "--epochs", "4", "--batch-size", "16"]
    assert main(["train", *options, "--out", str(run)]) == 2
    error = capsys.readouterr().err
    assert "the last good checkpoint is untouched: make room or choose a writable folder, then resume" in error
    assert len(error.splitlines()) == 1
    _, values = load_latest(run)
    assert 0 < values["progress"]["step"] < 24
    assert not [path for path in run.iterdir() if path.name.endswith(".tmp") or path.name.startswith(".last")]

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert main(["train", "--resume", str(run)]) == 0
    assert main(["train", *options, "--out", str(tmp_path / "undisturbed")]) == 0
    interrupted, whole = (
        (folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "undisturbed")
    )
    assert interrupted == whole
