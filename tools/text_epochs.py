"""What an epoch of text capsules costs beside one of Kim's CNN: TORCHCAPS_DATA=... python tools/text_epochs.py OUT.json

The models of the experiment zhao2018 are trained in one process on the same batches of MR, step by step in turns, so
that whatever else the machine does disturbs all alike; processor seconds are counted, after two steps to warm up.
"""

import json
import sys
import time
from pathlib import Path

import torch

from torchcaps.environment import environment
from torchcaps.experiments.zhao2018 import OPTIONS, text_run
from torchcaps.models.text import PAPER_SIZES
from torchcaps.runs import load_run_data, new_model, training_parts
from torchcaps.storage import write_json
from torchcaps.training.engine import Trainer

DATA = "mr"
MODELS = {
    "Kim's CNN": ("text-cnn", {}),
    "Capsule-A": ("text-capsule-a", {}),
    "Capsule-A with context": ("text-capsule-a", OPTIONS["Capsule-A with context"]),
    "Capsule-A, sizes of the paper, shared weights": ("text-capsule-a", {**PAPER_SIZES, "sharing": "shared"}),
}
WARM_UP = 2


def main() -> None:
    trainers, seconds = {}, dict.fromkeys(MODELS, 0.0)
    for name, (model, options) in MODELS.items():
        config = text_run("full", DATA, model, **options)
        data = load_run_data(config)
        torch.manual_seed(0)
        trainers[name] = Trainer(new_model(config, data), *training_parts(config, data), config.training)
    batches = trainers["Capsule-A"].batches
    order = batches.order(0)
    for step in range(-WARM_UP, batches.steps_per_epoch):
        for name, trainer in trainers.items():
            started = time.process_time()
            trainer.train_step(batches.indices(order, max(step, 0)), max(step, 0))
            seconds[name] += (time.process_time() - started) if step >= 0 else 0.0
    rows = [
        {
            "model": name,
            "processor seconds of an epoch": round(seconds[name], 2),
            "times Kim's CNN": round(seconds[name] / seconds["Kim's CNN"], 2),
            "parameters": sum(parameter.numel() for parameter in trainers[name].state.model.parameters()),
        }
        for name in MODELS
    ]
    result = {"data": DATA, "steps": batches.steps_per_epoch, "rows": rows, "environment": environment()}
    write_json(Path(sys.argv[1]), result)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
