"""Training throughput of the full CapsNet with the fused routing against the same network on the eager reference.

Both train the same batches in one process, step by step in turns; the medians are compared. Run it once as it is and
once with a heap that reuses its pages (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000).
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from torchcaps.environment import environment
from torchcaps.models import create_model
from torchcaps.routing import use_backend
from torchcaps.training import TrainingConfig
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import make_optimizer

BACKENDS = ("reference", "fused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    images = torch.rand(arguments.batch_size, 1, 28, 28)
    labels = torch.randint(10, (arguments.batch_size,))
    steps = {backend: training_step(images, labels) for backend in BACKENDS}
    seconds: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(1 + arguments.steps):
        for backend, step in steps.items():
            start = time.perf_counter()
            with use_backend(backend):
                step()
            seconds[backend].append(time.perf_counter() - start)
    rates = {backend: arguments.batch_size / statistics.median(times[1:]) for backend, times in seconds.items()}
    result = {"environment": environment(), "images_per_second": rates, "ratio": rates["fused"] / rates["reference"]}
    print(json.dumps({key: result[key] for key in ("images_per_second", "ratio")}))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


def training_step(images, labels):
    """A function that trains a CapsNet of its own by one step."""
    config = TrainingConfig()
    model = create_model("capsnet", image_shape=(1, 28, 28), num_classes=10).train()
    objective, optimizer = make_objective(model, config), make_optimizer(model, config)

    def step() -> None:
        loss = objective(model(images, labels), images, labels, 0.0).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
