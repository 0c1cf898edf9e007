"""Put the model of the best of several runs into the package, best by validation.

python tools/ship_model.py capsnet-small-mnist RUN RUN RUN
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torchcaps
from torchcaps.models.saving import SHIPPED

LARGEST = 2_000_000  # bytes of weights that may ship


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--choice", help="how a single run was chosen, and what its card should say besides")
    arguments = parser.parse_args()

    results = {run: json.loads((run / "result.json").read_text()) for run in arguments.runs}
    # a run on all training data has no validation accuracy, and must be the only one
    best = max(results, key=lambda run: results[run]["validation_accuracy"]) if len(results) > 1 else arguments.runs[0]
    model = torchcaps.load(best / "model").model
    model.card["title"] = arguments.name
    if len(results) > 1:
        accuracies = [result["accuracy"] for result in results.values()]
        model.card["choice"] = (
            f"best validation accuracy of {len(results)} seeds, whose test accuracies have the mean "
            f"{mean(accuracies):.4f} and standard deviation {stdev(accuracies):.4f}"
        )
    if arguments.choice:
        model.card["choice"] = arguments.choice
    folder = SHIPPED / arguments.name
    model.save_pretrained(folder)
    size = (folder / "model.safetensors").stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{folder} has {size:,} bytes of weights, at most {LARGEST:,} may ship")
    print(f"{folder}: seed {results[best]['seed']}, {size:,} bytes")


if __name__ == "__main__":
    main()
