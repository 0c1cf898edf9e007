"""Training throughput of every shipped capsule network and of the large ones, with fused routing and on eager torch.

Both train the same batch in one process, step by step in turns; the medians are compared. Run it once as it is and
once with a heap that reuses its pages (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000).

With --beside FILE the same networks of somebody else take their turns, too: FILE is Python code whose BESIDE maps the
name of a model to a function of the size of a batch that returns a function, which trains by one step.
"""

import argparse
import json
import runpy
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import torchcaps
from torchcaps.data import load_data
from torchcaps.environment import environment
from torchcaps.models import ImageModel, Model, create_model
from torchcaps.routing import use_backend
from torchcaps.training import TrainingConfig
from torchcaps.training.objective import make_objective
from torchcaps.training.optim import make_optimizer

BACKENDS = ("reference", "fused")
# Name -> the data of its texts, None for pictures of its own size; examples of a step.
SHIPPED = {
    "capsnet-small-mnist": (None, 64),
    "matrix-capsnet-small-smallnorb": (None, 64),
    "capsule-a-movie-snippets": ("movie-snippets", 64),
    "capsule-a-chinese-reviews": ("chinese-reviews", 64),
}
STARTED = {
    "capsnet": ({"image_shape": (1, 28, 28), "num_classes": 10}, 128),
    "matrix-capsnet": ({"image_shape": (2, 32, 32), "num_classes": 5}, 16),
    "matrix-capsnet-small": ({"image_shape": (2, 32, 32), "num_classes": 5, "routing": "vb"}, 64),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*SHIPPED, *STARTED])
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    beside = runpy.run_path(str(arguments.beside))["BESIDE"] if arguments.beside else {}

    models = {}
    for name in arguments.only:
        torch.manual_seed(0)
        models[name] = measure(name, arguments.steps, beside)
        print(json.dumps({name: models[name]}), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps({"environment": environment(), "models": models}, indent=2) + "\n")


def measure(name: str, num_steps: int, beside: Mapping[str, Callable[[int], Callable[[], None]]]) -> dict[str, float]:
    """Examples a second on each backend, and their ratio; those of somebody else's network where there is one."""
    if name in SHIPPED:
        data, batch_size = SHIPPED[name]
        model = torchcaps.load(name).model
    else:
        options, batch_size = STARTED[name]
        data, model = None, create_model(name, **options)
    if isinstance(model, ImageModel):
        inputs = torch.rand(batch_size, *model.image_shape)
    else:
        inputs = model.preprocessing(load_data(data).train.texts[:batch_size])
    step = training_step(model, inputs)
    steps = {backend: use_backend(backend)(step) for backend in BACKENDS}
    if name in beside:
        steps["beside"] = beside[name](batch_size)
    seconds: dict[str, list[float]] = {which: [] for which in steps}
    for _ in range(1 + num_steps):
        for which, run in steps.items():
            start = time.perf_counter()
            run()
            seconds[which].append(time.perf_counter() - start)
    rates = {which: batch_size / statistics.median(times[1:]) for which, times in seconds.items()}
    return {"batch_size": batch_size, **rates, "ratio": rates["fused"] / rates["reference"]}


def training_step(model: Model, inputs: torch.Tensor):
    """A function that trains a model by one step."""
    config = TrainingConfig()
    targets = torch.randint(model.num_classes, (len(inputs),))
    model.train()
    objective, optimizer = make_objective(model, config), make_optimizer(model, config)

    def step() -> None:
        objective(model(inputs, targets), inputs, targets, 0.0).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
