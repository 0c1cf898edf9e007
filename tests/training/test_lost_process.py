"""Several processes do the same or stop: one that dies ends the run, and the run goes on from its checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import DistributedType

from torchcaps.cli import main
from torchcaps.training.checkpoint import LAST, load_latest, load_state
from torchcaps.training.processes import check_replicated, is_loss, join_after_restart
from training.test_engine import stripes

# The command line; the second of two processes is killed where it would take step 21 for the first time.
DYING = """
import os, signal, sys
from torchcaps.cli import main
from torchcaps.training.engine import Trainer

train_step = Trainer.train_step

def train_or_die(self, indices, step):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.progress.step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    train_step(self, indices, step)

if os.environ["SHALL_DIE"] == "1":
    Trainer.train_step = train_or_die
sys.exit(main(["train", *sys.argv[1:]]))
"""


def launch(script: Path, arguments: list[str], *, options: tuple[str, ...] = (), shall_die: bool = False):
    """Run a script in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SHALL_DIE": str(int(shall_die))}
    return subprocess.run(
        [*command, str(script), *arguments], capture_output=True, text=True, env=environment, timeout=1200
    )


@pytest.fixture
def dying(tmp_path) -> Path:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    return script


@pytest.fixture
def options(tmp_path) -> list[str]:
    """30 steps in 5 epochs."""
    images = stripes()
    np.savez(tmp_path / "stripes.npz", x_train=images.images, y_train=images.labels, x_test=images.images[:9],
             y_test=images.labels[:9])  # fmt: skip
    return ["--data", str(tmp_path / "stripes.npz"), "--model", "cnn-small", "--epochs", "5", "--batch-size", "16"]


def test_a_process_that_dies_ends_the_run_with_a_usable_checkpoint(dying, options, tmp_path, capsys):
    run = tmp_path / "run"
    ended = launch(dying, [*options, "--out", str(run)], shall_die=True)
    assert ended.returncode != 0
    sentence = (
        "torchcaps: another process of this run ended at step 20, and the run cannot go on without it; the checkpoint "
        f"of step 18 is whole: start all processes again with `torchcaps train --resume {run}`\n"
    )
    assert sentence in ended.stderr
    assert not (run / "result.json").exists()
    assert load_latest(run).values["progress"]["step"] == 18
    assert main(["train", "--resume", str(run)]) == 0  # here in one process
    assert "test accuracy" in capsys.readouterr().out
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [6, 12, 18, 24, 30]


@pytest.mark.slow
def test_an_elastic_restart_goes_on_and_ends_with_the_same_bits(dying, options, tmp_path):
    restarted, undisturbed = tmp_path / "restarted", tmp_path / "undisturbed"
    ended = launch(dying, [*options, "--out", str(restarted)], options=("--max-restarts", "1"), shall_die=True)
    assert ended.returncode == 0, ended.stderr
    assert "another process of this run ended at step 20" in ended.stderr
    assert launch(dying, [*options, "--out", str(undisturbed)]).returncode == 0
    first, second = (load_state(folder / LAST)[0] for folder in (restarted, undisturbed))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())
    rows = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (restarted, undisturbed)
    ]
    for row in (*rows[0], *rows[1]):
        del row["seconds"]
    assert rows[0] == rows[1]


# Two runs, one after the other. In the first, clocks disagree about when a checkpoint is due, and only the second
# process hears a signal. In the second, only the first process finds the checkpoint.
AGREEING = """
import json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
import test_engine
from torchcaps.training import Interrupted
from torchcaps.training.engine import Trainer

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
train_step = Trainer.train_step

def train_slowly(self, indices, step):
    train_step(self, indices, step)
    time.sleep(0.02 * (self.progress.step % (2 + rank)))
    if rank == 1 and self.progress.step == 9:
        os.kill(os.getpid(), signal.SIGTERM)

Trainer.train_step = train_slowly
saved, save = [], Trainer.save

def save_and_tell(self):
    saved.append(self.progress.step)
    save(self)

Trainer.save = save_and_tell
config = replace(test_engine.CONFIG, checkpoint_minutes=0.05 / 60)
found = {{"stopped": False, "refused": ""}}
try:
    test_engine.train(test_engine.new_model("cnn-small"), config, folder=folder / "first")
except Interrupted:
    found["stopped"] = True
try:
    test_engine.train(test_engine.new_model("cnn-small"), config, folder=folder / ("first" if rank == 0 else "second"))
except ValueError as error:
    found["refused"] = str(error)
(folder / f"found-{{rank}}.json").write_text(json.dumps(found | {{"saved": saved}}))
for _ in range(20):  # a process may end while messages are on their way
    torch.distributed.all_reduce(torch.ones(10), async_op=True)
"""


def test_all_processes_do_the_same(tmp_path):
    script = tmp_path / "agreeing.py"
    script.write_text(AGREEING.format(tests=os.path.dirname(__file__)))
    ended = launch(script, [str(tmp_path)])
    assert ended.returncode == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert first["saved"] == second["saved"]
    assert first["saved"][-1] == 9  # where one was told to stop, all have
    assert len(first["saved"]) > 2
    assert first["stopped"]
    assert second["stopped"]
    assert load_latest(tmp_path / "first").values["progress"]["step"] == 9
    assert "checkpoints of different steps" in first["refused"]
    assert "[9, 0]; the folder of a run must be the same on all machines" in second["refused"]


def test_restarts_on_several_machines_need_a_new_store(monkeypatch):
    started = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3", "GROUP_WORLD_SIZE": "2"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        join_after_restart()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # what torchrun then says
    join_after_restart()
    assert not torch.distributed.is_initialized()


def test_a_model_in_pieces_is_refused():
    for kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        with pytest.raises(ValueError, match=f"asks for {kind.value}; launch with"):
            check_replicated(SimpleNamespace(distributed_type=kind))
    check_replicated(SimpleNamespace(distributed_type=DistributedType.MULTI_GPU))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.distributed.DistNetworkError("gone"), True),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (torch.OutOfMemoryError("out of memory"), False),
    ],
)
def test_other_errors_are_not_taken_for_a_loss(error, expected):
    assert is_loss(error) is expected
