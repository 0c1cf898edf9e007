"""A disk that fills up ends a run in one sentence, and nothing good is lost."""

import json
import subprocess
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

from test_storage import LEFT, one_sentence
from torchcaps.cli import main
from torchcaps.training.checkpoint import load_latest
from training.test_engine import stripes

# What is written when, and by whom.
STAGES = {
    "config.json": "torchcaps.runs.running:write_json",
    "metrics.jsonl": "torchcaps.training.tracking:MetricsFile.append",
    "last.safetensors": "torchcaps.training.checkpoint:save_state",
    "report.png": "torchcaps.runs.running:draw_report",
    "model": "torchcaps.runs.running:save_model",
    "result.json": "torchcaps.runs.running:write_json",
}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB; a checkpoint of the small CNN takes 2.7 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("not permitted to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def data(tmp_path) -> list[str]:
    images, path = stripes(), tmp_path / "stripes.npz"
    np.savez(path, x_train=images.images, y_train=images.labels, x_test=images.images, y_test=images.labels)
    return ["--data", str(path), "--batch-size", "16"]


def assert_same(run: Path, undisturbed: Path) -> None:
    """Weights to the bit, metrics but for the seconds, and the same files."""
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (run / "model" / name).read_bytes() == (undisturbed / "model" / name).read_bytes()
    rows, expected = (
        [json.loads(line) | {"seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (run, undisturbed)
    )
    assert rows == expected
    assert {path.name for path in run.iterdir()} == {path.name for path in undisturbed.iterdir()} == LEFT


@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_checkpoint(small_disk, data, tmp_path, capsys):
    run, undisturbed = small_disk / "run", tmp_path / "run"
    options = [*data, "--model", "cnn-small", "--epochs", "4"]
    assert main(["train", *options, "--out", str(run)]) == 2
    error = one_sentence(capsys)
    assert "what was there before is untouched: make room or choose a writable folder, then try again" in error
    assert 0 < load_latest(run).values["progress"]["step"] < 24
    assert {path.name for path in run.iterdir()} < LEFT

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert main(["train", "--resume", str(run)]) == 0
    assert main(["train", *options, "--out", str(undisturbed)]) == 0
    assert_same(run, undisturbed)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    size = 2**16
    with open(path, "wb", buffering=0) as file:
        while size:
            try:
                written = file.write(bytes(size))
            except OSError:
                written = 0
            if written < size:
                size //= 2


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_is_full_at_any_stage(stage, small_disk, data, tmp_path, monkeypatch, capsys):
    run, undisturbed, filler = small_disk / "run", tmp_path / "run", small_disk / "filler"
    options = [*data, "--model", "matrix-capsnet-small", "--epochs", "2"]
    options += ["--option", "channels=4", "--option", "types=[2,2,2]"]
    write, target = resolve_name(STAGES[stage]), STAGES[stage].replace(":", ".")

    def write_on_a_full_disk(*arguments):
        is_stage = not target.endswith("write_json") or arguments[0].name == stage
        if is_stage and not filler.exists():
            fill(filler)
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(target, write_on_a_full_disk)
        assert main(["train", *options, "--out", str(run)]) == 2
    error = one_sentence(capsys)
    assert f"could not write {run / stage} (" in error
    assert "No space left on device" in error
    left = {path.name for path in run.iterdir()} if run.exists() else set()
    assert left < LEFT

    filler.unlink()
    again = ["--resume", str(run)] if "config.json" in left else [*options, "--out", str(run)]
    assert main(["train", *again]) == 0
    assert main(["train", *options, "--out", str(undisturbed)]) == 0
    assert_same(run, undisturbed)
