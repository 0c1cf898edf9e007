"""A run folder belongs to one process, its files are whole or absent, and what goes wrong is said in one sentence."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from torchcaps.cli import main
from torchcaps.storage import FolderInUse, NotWritten, lock_folder, whole_file
from torchcaps.training.engine import Trainer
from training.test_engine import stripes

LEFT = {"config.json", "environment.json", "last.safetensors", "metrics.jsonl", "model", "previous.safetensors"}
LEFT |= {"report.png", "result.json"}


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> list[str]:
    """Of `torchcaps train`: 12 steps in 2 epochs."""
    path, images = tmp_path_factory.mktemp("data") / "stripes.npz", stripes()
    test = stripes(9, seed=1)
    np.savez(path, x_train=images.images, y_train=images.labels, x_test=test.images, y_test=test.labels)
    network = ["--model", "matrix-capsnet-small", "--option", "channels=4", "--option", "types=[2,2,2]"]
    return ["--data", str(path), *network, "--epochs", "2", "--batch-size", "16"]


def one_sentence(capsys) -> str:
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "file"
    with whole_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(UnicodeEncodeError), whole_file(path) as temporary:
        temporary.write_text("half \ud800", encoding="utf-8")
    assert (os.listdir(tmp_path), path.read_text()) == (["file"], "whole")
    with (
        pytest.raises(NotWritten, match="its folder has vanished"),
        whole_file(tmp_path / "gone" / "file") as temporary,
    ):
        temporary.write_text("nowhere")


def test_a_folder_belongs_to_one_process(tmp_path):
    code = (
        "from pathlib import Path; from torchcaps.storage import lock_folder\n"
        f"with lock_folder(Path({str(tmp_path)!r})): pass"
    )
    with lock_folder(tmp_path):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is using" in other.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert os.listdir(tmp_path) == []


def test_a_lock_that_was_taken_away_in_between_does_not_count(tmp_path, monkeypatch):
    flock = "torchcaps.storage.fcntl.flock"
    monkeypatch.setattr(flock, lambda file, kind: (tmp_path / ".lock").unlink())
    with pytest.raises(FolderInUse), lock_folder(tmp_path):
        pass


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".tmp-123-last.safetensors").touch()
    (tmp_path / ".tmp-123-model").mkdir()
    (tmp_path / ".tmp-123-model" / "model.safetensors").touch()
    (tmp_path / ".mine").touch()
    with lock_folder(tmp_path):
        assert sorted(os.listdir(tmp_path)) == [".lock", ".mine"]
    assert os.listdir(tmp_path) == [".mine"]


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path, capsys):
    assert main(["train", "--data", str(tmp_path / "nothing.npz"), "--out", str(tmp_path / "run")]) == 2
    assert "nothing.npz" in one_sentence(capsys)
    assert os.listdir(tmp_path) == []


def test_the_second_process_is_refused_and_changes_nothing(options, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *options, "--out", str(run)]) == 0
    assert {path.name for path in run.iterdir()} == LEFT
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    with lock_folder(run):  # a lock is refused to the same process too
        for arguments in ([*options, "--out", str(run)], ["--resume", str(run)]):
            assert main(["train", *arguments]) == 2
            assert f"another process is using {run}; wait for it or choose another folder" in one_sentence(capsys)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_a_folder_that_vanishes_ends_the_run(options, tmp_path, monkeypatch, capsys):
    run, end_epoch = tmp_path / "run", Trainer.end_epoch

    def vanish(self):
        if self.progress.step == self.progress.total_steps:
            shutil.rmtree(run)
        end_epoch(self)

    monkeypatch.setattr(Trainer, "end_epoch", vanish)
    assert main(["train", *options, "--out", str(run)]) == 2
    assert f"could not write {run / 'metrics.jsonl'}: its folder has vanished" in one_sentence(capsys)
    assert not run.exists()


@pytest.fixture
def read_only(tmp_path):
    """A folder that nobody can write to, not even root."""
    place = tmp_path / "read-only"
    place.mkdir(mode=0o500)
    if os.geteuid() != 0:
        yield place
        return
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)], capture_output=True).returncode != 0:
        pytest.skip("not permitted to mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_folder_is_refused_before_anything_is_read(read_only, tmp_path, capsys):
    for folder in (read_only, read_only / "run", read_only / "deep" / "run"):
        assert main(["train", "--data", str(tmp_path / "nothing.npz"), "--out", str(folder)]) == 2
        error = one_sentence(capsys)
        assert f"cannot write to {folder} (" in error
        assert "; choose a writable folder" in error
    file = tmp_path / "file"
    file.touch()
    assert main(["train", "--out", str(file / "run")]) == 2
    assert f"cannot write to {file / 'run'} (Not a directory)" in one_sentence(capsys)
