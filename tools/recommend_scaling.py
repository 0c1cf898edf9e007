"""What it costs to train MIND on more and more interactions of generated people: processor time and peak memory.

    python tools/recommend_scaling.py results/recommend-scaling/scaling.json

Each size is generated, written as a .csv, read, split, trained for one epoch and tested in a process of its own.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZES = (125_000, 250_000, 500_000, 1_000_000)
NUM_ITEMS, NUM_GROUPS, MEAN_LENGTH = 5000, 100, 30


def write_people(path: Path, size: int) -> int:
    """So many interactions of generated people; gives how many people there are."""
    from torchcaps.data.interactions import generate_people

    people = generate_people(size // 15, num_items=NUM_ITEMS, num_groups=NUM_GROUPS, mean_length=MEAN_LENGTH)
    interactions = people.interactions
    assert len(interactions) >= size, f"only {len(interactions)} of {size}"
    users = np.repeat(np.arange(len(interactions.user_names)), np.diff(interactions.starts))[:size]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        writer.writerows(zip(users.tolist(), interactions.items[:size].tolist(), range(size)))
    return int(users[-1]) + 1


def measure(path: Path) -> dict[str, float]:
    """Seconds of each part, and the most memory that the process ever had, in this process."""
    import torch

    from torchcaps.data.interactions import load_histories
    from torchcaps.retrieval import score_recommender
    from torchcaps.training import TrainingConfig, fit
    from torchcaps.training.recommend import new_recommender

    torch.manual_seed(0)
    before = peak_megabytes()
    moments = [(time.process_time(), time.perf_counter())]

    def lap() -> tuple[float, float]:
        moments.append((time.process_time(), time.perf_counter()))
        return tuple(round(now - then, 1) for now, then in zip(moments[-1], moments[-2]))

    data = load_histories(path)
    read, _ = lap()
    model = new_recommender("mind", data.train.interactions)
    progress = fit(model, data.train, None, TrainingConfig(epochs=1, batch_size=512, learning_rate=5e-3))
    trained, trained_wall = lap()
    scores = score_recommender(model, data.test)
    tested, _ = lap()
    return {
        "reading, CPU s": read,
        "an epoch, CPU s": trained,
        "an epoch, wall s": trained_wall,
        "testing, CPU s": tested,
        "steps": progress.step,
        "tested people": len(data.test),
        "recall@20": round(scores["recall@20"], 4),
        "MB before": before,
        "peak MB": peak_megabytes(),
    }


def peak_megabytes() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.measure)))
        return
    from torchcaps.environment import environment
    from torchcaps.storage import write_json

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in given.sizes:
            path = Path(folder) / "people.csv"
            num_people = write_people(path, size)
            command = [sys.executable, __file__, str(given.out), "--measure", str(path)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append({"interactions": size, "people": num_people, "items": NUM_ITEMS} | json.loads(found))
            print(rows[-1], flush=True)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(given.out, {"rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
