"""Kill training at random moments and resume it, again and again: does it end with the same bits?

    python tools/kill_and_resume.py --kills 50 --out results/reliability/kills.json

`torchcaps train` runs in a process of its own (forked, so that it need not load torch again) that notes what it is
doing. A kill is a SIGKILL aimed at one of the phases below, at a random one of its occurrences and a random moment in
it or shortly after; phases take turns, because a moment drawn from the clock alone would hardly ever meet the few
milliseconds in which a file is written. What the process was doing when it died is taken from its notes. When a run
has come to its end in spite of the kills, everything in its folder is compared with a run that nobody disturbed.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch

from torchcaps.cli import main as command_line
from torchcaps.environment import environment
from torchcaps.storage import write_json
from torchcaps.training.checkpoint import CheckpointError, load_latest, load_state

START = "starting the process"
PHASES = {
    "preparing data": "torchcaps.runs:load_run_data",
    "making the model": "torchcaps.runs:new_model",
    "reading the checkpoint": "torchcaps.training.checkpoint:load_latest",
    "training": "torchcaps.training.engine:Trainer.train_step",
    "validation": "torchcaps.training.engine:Trainer.evaluate",
    "writing metrics": "torchcaps.training.tracking:MetricsFile.append",
    "writing a checkpoint": "torchcaps.training.checkpoint:save_state",
    "drawing the report": "torchcaps.runs:draw_report",
    "writing the model": "torchcaps.runs:save_model",
    "writing a JSON file": "torchcaps.runs:write_json",
}
BETWEEN = "between phases"
OPTIONS = "--model matrix-capsnet-small --option channels=8 --option types=[4,4,4] --epochs 3 --batch-size 16"
OPTIONS += " --learning-rate 0.01 --checkpoint-minutes 0.001"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = kill_and_resume(Path(folder), arguments.kills, random.Random(arguments.seed))
    result = {"environment": environment(), "seed": arguments.seed, "options": OPTIONS} | result
    if arguments.out:
        write_json(arguments.out, result)
    if not result["all_the_same"]:
        sys.exit("a run that was killed ended differently")


# In the process that is killed.


def train_and_note(notes: int, log: Path, arguments: list[str]) -> None:
    """The command line, with a line into the pipe `notes` wherever a phase begins or ends."""
    torch.set_num_threads(1)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)

    def noted(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*positional: Any, **named: Any) -> Any:
            os.write(notes, f"{phase}\n".encode())
            try:
                return function(*positional, **named)
            finally:
                os.write(notes, f"{BETWEEN}\n".encode())

        return wrapper

    for phase, place in PHASES.items():
        owner, _, name = place.replace(":", ".").rpartition(".")
        owner = resolve_name(owner)
        setattr(owner, name, noted(phase, getattr(owner, name)))
    sys.exit(command_line(["train", *arguments]))


# In the process that kills.


class Attempt:
    """A process that trains, followed by what it notes."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.log, self.phases, self.times = folder / "log", [START], [time.monotonic()]
        reader, writer = os.pipe()
        self.process = get_context("fork").Process(target=train_and_note, args=(writer, self.log, arguments))
        self.process.start()
        os.close(writer)  # so that the end of the process is the end of the notes
        self.notes = os.fdopen(reader)

    def follow(self, phase: str | None = None, occurrence: int = 1) -> bool:
        """Wait until a phase begins for the n-th time; False if the process ends before."""
        while self.phases.count(phase) < occurrence:
            if not (line := self.notes.readline()):
                self.process.join()
                return False
            self.phases.append(line.rstrip())
            self.times.append(time.monotonic())
        return True

    def kill(self, phase: str, occurrence: int, delay: float) -> bool:
        """Kill some seconds after a phase began for the n-th time; False if the process came to its end before."""
        if self.follow(phase, occurrence):
            time.sleep(delay)
            self.process.kill()
            self.follow()
        return self.process.exitcode == -signal.SIGKILL

    def finish(self) -> None:
        """Wait for the end, which must be a good one."""
        self.follow()
        if self.process.exitcode != 0:
            raise RuntimeError(f"training ended with code {self.process.exitcode}:\n{self.log.read_text()}")


def kill_and_resume(folder: Path, num_kills: int, draws: random.Random) -> dict[str, Any]:
    """Run after run until there have been enough kills, each compared with the one that nobody disturbed."""
    options = ["--data", str(write_data(folder / "stripes.npz")), *OPTIONS.split()]
    undisturbed = folder / "undisturbed" / "run"
    undisturbed.parent.mkdir()
    occurrences, seconds = measure(undisturbed, options)
    kills, runs, aims = [], [], []
    while len(kills) < num_kills:
        place = folder / str(len(runs)) / "run"
        place.parent.mkdir()
        before = len(kills)
        while True:
            again = ["--resume", str(place)] if (place / "config.json").exists() else [*options, "--out", str(place)]
            attempt = Attempt(place.parent, again)
            aims = aims or draws.sample([START, *PHASES], len(PHASES) + 1)
            aim = aims.pop()
            number = occurrences[aim]
            occurrence = draws.randint(1, max(1, number if number < 5 else number // 4))
            delay = draws.uniform(0, 1.5 * seconds[aim])
            if len(kills) == num_kills or not attempt.kill(aim, occurrence, delay):
                break
            kills.append({"run": len(runs), "aim": aim} | describe(attempt, place))
            print(kills[-1], flush=True)
        attempt.finish()
        runs.append({"kills": len(kills) - before} | compare(place, undisturbed))
        print(runs[-1], flush=True)
    return {
        "num_kills": len(kills),
        "killed_while": dict(Counter(kill["killed_while"] for kill in kills).most_common()),
        "kills_with_half_written_files": sum(bool(kill["half_written"]) for kill in kills),
        "all_the_same": all(all(value for name, value in run.items() if name != "kills") for run in runs),
        "runs": runs,
        "kills": kills,
    }


def measure(place: Path, options: list[str]) -> tuple[Counter[str], dict[str, float]]:
    """The run that nobody disturbs: how often each phase comes, and how long it takes in the median."""
    attempt = Attempt(place.parent, [*options, "--out", str(place)])
    attempt.finish()
    durations = defaultdict(list)
    for phase, (begun, ended) in zip(attempt.phases, pairwise(attempt.times), strict=False):
        durations[phase].append(ended - begun)
    seconds = {phase: statistics.median(durations[phase] or [0.01]) for phase in (START, *PHASES)}
    return Counter(attempt.phases), seconds


def describe(attempt: Attempt, place: Path) -> dict[str, Any]:
    """Where a kill hit: the phase, the files left half written, and the step from which the run will go on."""
    try:
        state = load_latest(place)
    except CheckpointError as error:
        raise RuntimeError("a kill damaged a checkpoint") from error
    return {
        "killed_while": attempt.phases[-1],
        "half_written": sorted(path.name.split("-", 2)[2] for path in place.glob(".tmp-*")),
        "goes_on_from_step": 0 if state is None else state.values["progress"]["step"],
    }


def compare(place: Path, undisturbed: Path) -> dict[str, bool]:
    """What is the same in two finished runs; the seconds that they took are not."""
    found, expected = read(place), read(undisturbed)
    return {f"same_{name}": value == expected[name] for name, value in found.items()}


def read(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that must not depend on kills."""
    tensors, values = load_state(folder / "last.safetensors")
    values["progress"]["seconds"] = 0
    rows = [json.loads(line) | {"seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "model": {path.name: path.read_bytes() for path in (folder / "model").iterdir()},
        "weights_and_optimiser": {name: (t.dtype, t.shape, t.numpy().tobytes()) for name, t in tensors.items()},
        "progress": values,
        "metrics": rows,
        "result": json.loads((folder / "result.json").read_text()) | {"seconds": 0},
        "report": (folder / "report.png").read_bytes(),
    }


def write_data(path: Path, num_images: int = 320) -> Path:
    """Horizontal and vertical stripes under noise."""
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 2, num_images)
    pattern = (np.arange(20) % 4 < 2) * 120
    images = np.where(labels[:, None, None] == 0, pattern[:, None], pattern[None, :])
    images = (images + draws.integers(0, 135, images.shape)).astype(np.uint8)
    num_test = num_images // 4
    np.savez(
        path, x_train=images[num_test:], y_train=labels[num_test:], x_test=images[:num_test], y_test=labels[:num_test]
    )
    return path


if __name__ == "__main__":
    main()
