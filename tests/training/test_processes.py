"""Two processes give the weights of one, and count every example once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchcaps.predictor import load
from torchcaps.training.checkpoint import LAST, load_state
from training.test_engine import stripes

# All networks one after the other: processes take longer to start than to train them.
SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
import test_engine
from torchcaps.models import CapsNetSmall, MatrixCapsNetSmall
torch.set_num_threads(1)
folder = Path({folder!r})
config = replace(test_engine.CONFIG, optimizer="sgd", learning_rate=1e-2)
# dynamic routing: the gradients of EM are so steep at the start that rounding alone tells runs apart in 20 steps
model = test_engine.new_model(routing="dynamic")
test_engine.train(model, replace(config, epochs=4, ema=None, loss="margin"), folder=folder / "dynamic")

for kind, options in [(MatrixCapsNetSmall, {matrix!r}), (CapsNetSmall, {{}})]:
    class Precise(kind):
        def forward(self, images, classes=None):
            return super().forward(images.double(), classes)

    torch.manual_seed(0)
    model = Precise(image_shape=(1, 19, 19), num_classes=2, **options).double()
    test_engine.train(model, replace(config, epochs=1), folder=folder / kind.__name__)
"""
MATRIX = {"channels": 4, "types": (2, 2, 2), "routing_options": {"num_iterations": 2}}
STARTS = {1: [sys.executable], 2: [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[int, Path]:
    """Folders of the same runs in one process and in two, in steps of 16 images."""
    folders = {}
    for num_processes, command in STARTS.items():
        folders[num_processes] = tmp_path_factory.mktemp(f"processes-{num_processes}")
        script = folders[num_processes] / "train.py"
        script.write_text(
            SCRIPT.format(tests=os.path.dirname(__file__), folder=str(folders[num_processes]), matrix=MATRIX)
        )
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run([*command, str(script)], capture_output=True, text=True, env=environment, timeout=1200)
        assert done.returncode == 0, done.stderr
    return folders


def last_states(trained: dict[int, Path], name: str) -> list[dict[str, torch.Tensor]]:
    """What one process and two have learned."""
    return [load_state(folder / name / LAST)[0] for folder in trained.values()]


def test_two_processes_give_the_weights_of_one(trained):
    one, two = last_states(trained, "dynamic")
    for name, tensor in one.items():
        if name.startswith("model."):
            torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)
    one_rows, two_rows = (
        [json.loads(line) for line in (folder / "dynamic" / "metrics.jsonl").read_text().splitlines()]
        for folder in trained.values()
    )
    assert len(one_rows) == len(two_rows) == 4
    for a, b in zip(one_rows, two_rows):
        assert abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"]
        assert a["step"] == b["step"]
        assert abs(a["validation_accuracy"] - b["validation_accuracy"]) <= 1 / 32


@pytest.mark.parametrize("kind", ["MatrixCapsNetSmall", "CapsNetSmall"])
def test_norms_take_the_statistics_of_all_processes(kind, trained):
    one, two = last_states(trained, kind)
    for name, tensor in one.items():
        if name.startswith(("model.", "average.")):
            torch.testing.assert_close(two[name], tensor, rtol=1e-11, atol=1e-12, msg=f"{name} differs")


LAUNCHERS = {
    "accelerate": ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
                   "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_command_line_on_two_processes(launcher, tmp_path):
    images = stripes()
    np.savez(tmp_path / "stripes.npz", x_train=images.images, y_train=images.labels, x_test=images.images[:9],
             y_test=images.labels[:9])  # fmt: skip
    options = ["--data", str(tmp_path / "stripes.npz"), "--model", "cnn-small", "--epochs", "2", "--batch-size", "16"]
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "torchcaps", "train", *options]
    process = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("test accuracy: ") == 1  # the first process speaks for both
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [6, 12]  # 87 images in batches of 16 over both
    assert load(tmp_path / "run").predict_proba(images.images).shape == (96, 2)
