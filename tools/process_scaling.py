"""Images per second of training in one process, in one with two threads, and in two processes that share each batch.

Every layout is launched with torchrun, so that all pay for the same machinery; layouts take turns, and the median over
the steps of all turns is reported. The batch is the same in all, and so is what is learned.

    python tools/process_scaling.py --out results/scaling/processes.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from torchcaps.data import choose_some, load_data
from torchcaps.environment import environment
from torchcaps.models import create_model
from torchcaps.training import Event, TrainingConfig, fit

LAYOUTS = {"1 process": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}  # processes, threads of each
WARM_UP = 3  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["capsnet-small", "capsnet", "cnn-small"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12, help="of a turn, after a few that warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        train(arguments.models[0], arguments.batch_size, arguments.steps, arguments.worker)
        return
    rows = [row for model in arguments.models for row in measure(model, arguments)]
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"environment": environment(), "batch_size": arguments.batch_size, "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def measure(model: str, arguments: argparse.Namespace) -> list[dict]:
    """A row for each layout."""
    seconds: dict[str, list[float]] = {name: [] for name in LAYOUTS}
    for _ in range(arguments.rounds):
        for name, (num_processes, num_threads) in LAYOUTS.items():
            seconds[name] += launch(model, num_processes, num_threads, arguments)
    created = create_model(model, image_shape=(1, 28, 28), num_classes=10)
    num_parameters = sum(parameter.numel() for parameter in created.parameters() if parameter.requires_grad)
    rows = []
    for name, (num_processes, num_threads) in LAYOUTS.items():
        rate = arguments.batch_size / statistics.median(seconds[name])
        rows.append(
            {
                "model": model,
                "layout": name,
                "processes": num_processes,
                "threads": num_threads,
                "images_per_second": rate,
                "ratio": rate / rows[0]["images_per_second"] if rows else 1.0,
                "parameters": num_parameters,
                # a ring sends every gradient 2 (N - 1) / N times
                "bytes_sent_by_each_process_per_step": 4 * num_parameters * 2 * (num_processes - 1) // num_processes,
            }
        )
        print(f"{model:16s} {name:22s} {rate:8.1f} images/s, {rows[-1]['ratio']:.2f} times one process", flush=True)
    return rows


def launch(model: str, num_processes: int, num_threads: int, arguments: argparse.Namespace) -> list[float]:
    """Seconds of each step of a turn."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(num_processes),
        ]
        command += [__file__, "--worker", str(out), "--models", model]
        command += ["--batch-size", str(arguments.batch_size), "--steps", str(arguments.steps)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": str(num_threads)})
        return json.loads(out.read_text())


def train(model: str, batch_size: int, steps: int, out: Path) -> None:
    """One process of a turn; the first writes how long its steps took."""
    times: list[float] = []

    def on_event(event: Event) -> None:
        if not event.is_epoch_end:
            times.append(time.perf_counter())

    torch.manual_seed(0)
    images = choose_some(load_data("digits").train, batch_size * (WARM_UP + steps), 0)
    created = create_model(model, image_shape=(1, 28, 28), num_classes=10)
    fit(created, images, config=TrainingConfig(epochs=1, batch_size=batch_size), on_event=on_event, device="cpu")
    if int(os.environ["RANK"]) == 0:
        out.write_text(json.dumps([after - before for before, after in pairwise(times[WARM_UP - 1 :])]))


if __name__ == "__main__":
    main()
