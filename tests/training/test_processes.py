"""Two processes give the weights of one, and count every example once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from torchcaps.training.checkpoint import LAST, load_state

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
import test_engine
torch.set_num_threads(1)
config = replace(test_engine.CONFIG, epochs=4, ema=None, optimizer="sgd", learning_rate=1e-2, loss="margin")
model = test_engine.new_model(routing={routing!r})
test_engine.train(model, config, folder=Path({folder!r}))
"""


def train(folder: Path, num_processes: int, routing: str) -> tuple[dict, list[dict]]:
    """The last state and the metrics of 24 steps of 16 images."""
    script = folder.parent / f"{folder.name}.py"
    script.write_text(SCRIPT.format(tests=os.path.dirname(__file__), folder=str(folder), routing=routing))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(script)], check=True, capture_output=True, env=environment, timeout=300)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return load_state(folder / LAST)[0], rows


def test_two_processes_give_the_weights_of_one(tmp_path):
    # dynamic routing: the gradients of EM are so steep at the start that rounding alone tells runs apart in 20 steps
    one, one_rows = train(tmp_path / "one", 1, "dynamic")
    two, two_rows = train(tmp_path / "two", 2, "dynamic")
    for name, tensor in one.items():
        if name.startswith("model."):
            torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5)
    assert len(one_rows) == len(two_rows) == 4
    for a, b in zip(one_rows, two_rows):
        assert abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"]
        assert a["step"] == b["step"]
        assert abs(a["validation_accuracy"] - b["validation_accuracy"]) <= 1 / 32
