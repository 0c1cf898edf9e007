"""Watch a long training: is every figure finite, does memory stay flat, does a copy resumed near the end give the bits?

    python tools/long_run.py runs/long --out results/reliability/long-run.json -- --data smallnorb \
        --model matrix-capsnet-small --epochs 60 ...

What follows the two dashes goes to `torchcaps train`. When so many epochs are left as --epochs-again says, the folder
of the run is copied as it is at that moment; at the end the copy is resumed and must arrive at the same weights.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from torchcaps.environment import environment

TRAIN = (sys.executable, "-m", "torchcaps", "train")
SECONDS_BETWEEN = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs-again", type=int, default=2, help="done twice, the second time on the copy")
    parser.add_argument("training", nargs="+", help="options of `torchcaps train`")
    arguments = parser.parse_args()
    copy = arguments.run.with_name(arguments.run.name + "-copy")
    start = time.monotonic()
    samples = watch(arguments.run, copy, arguments.epochs_again, arguments.training)
    seconds = time.monotonic() - start
    metrics = read_metrics(arguments.run)
    print("resuming the copy", flush=True)
    subprocess.run([*TRAIN, "--resume", str(copy)], check=True)
    result = {
        "environment": environment(),
        "minutes": seconds / 60,
        "epochs": metrics[-1]["epoch"],
        "steps": metrics[-1]["step"],
        "all_finite": all(math.isfinite(value) for line in metrics for value in line.values()),
        "memory": {"minutes_and_megabytes": samples, **growth(samples)},
        "epochs_again": arguments.epochs_again,
        "copy_has_the_same_weights": weights(copy) == weights(arguments.run),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print({name: value for name, value in result.items() if name not in ("environment", "memory")})
    print({name: value for name, value in result["memory"].items() if name != "minutes_and_megabytes"})


def watch(run: Path, copy: Path, epochs_again: int, training: list[str]) -> list[tuple[float, float]]:
    """Train to the end; minutes and resident megabytes meanwhile."""
    start, samples = time.monotonic(), []
    with subprocess.Popen([*TRAIN, *training, "--out", str(run)]) as process:
        while process.poll() is None:
            time.sleep(SECONDS_BETWEEN)
            if (megabytes := resident_megabytes(process.pid)) is not None:
                samples.append((round((time.monotonic() - start) / 60, 2), round(megabytes, 1)))
            if not copy.exists() and is_time_to_copy(run, epochs_again):
                shutil.copytree(run, copy)
    if process.returncode != 0:
        sys.exit(f"training ended with code {process.returncode}")
    return samples


def is_time_to_copy(run: Path, epochs_again: int) -> bool:
    metrics = read_metrics(run)
    if not metrics:
        return False
    num_epochs = json.loads((run / "config.json").read_text())["training"]["epochs"]
    return metrics[-1]["epoch"] >= num_epochs - epochs_again


def resident_megabytes(pid: int) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return None
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(kilobytes[0]) / 1024 if kilobytes else None


def growth(samples: list[tuple[float, float]]) -> dict[str, float]:
    """The straight line through the second half, when caches and pools are full."""
    minutes, megabytes = np.asarray(samples[len(samples) // 2 :]).T
    slope = np.polyfit(minutes / 60, megabytes, 1)[0]
    return {"megabytes_per_hour": float(slope), "least": float(megabytes.min()), "most": float(megabytes.max())}


def read_metrics(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
