"""A run from data to report."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torchcaps.environment import environment
from torchcaps.predictor import Predictor
from torchcaps.runs.building import new_model
from torchcaps.runs.configuration import CONFIG, ENVIRONMENT, RESULT, RunConfig
from torchcaps.runs.data import load_run_data, training_parts
from torchcaps.runs.reporting import draw_report, reconstruction_error, save_model
from torchcaps.storage import lock_folder, write_json
from torchcaps.training import Event
from torchcaps.training.engine import Trainer
from torchcaps.training.processes import processes


def run(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None = None) -> dict[str, Any]:
    """Train, choose on validation, test once, report. A run that was stopped in `folder` goes on where it stood.

    Returns:
        What result.json holds: test accuracy, validation accuracy (where there are such data), seconds, parameters.
    """
    is_main = processes().is_main_process
    with lock_folder(folder) if is_main else nullcontext():  # from the first file to the last
        if (folder / CONFIG).exists() and RunConfig.read(folder) != config:
            raise ValueError(f"{folder} holds another run; resume it with `--resume {folder}` or choose another folder")
        return _run(config, folder, on_event, is_main)


def _run(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None, is_main: bool) -> dict[str, Any]:
    data = load_run_data(config)
    train, validation = training_parts(config, data)
    if validation is None and (config.training.early_stopping is not None or config.training.schedule == "plateau"):
        raise ValueError("early stopping and plateaus need validation data; give a validation above 0")
    torch.manual_seed(config.training.seed)
    model = new_model(config, data)
    if is_main:
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
    progress = Trainer(model, train, validation, config.training, folder=folder, on_event=on_event).run()
    result: dict[str, Any] = {}
    if validation is not None:
        result |= {f"validation_{name}": value for name, value in progress.best_figures.items()}
        result["best_epoch"] = progress.best_epoch + 1
    result |= {
        "seconds": round(progress.seconds, 1),
        "steps": progress.step,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seed": config.training.seed,
        "kind": model.kind,
    }
    if is_main:
        predictor, task = Predictor(model), model.task
        task.look_at(train.labels)
        if task.leaves_open and validation is not None:
            settled = task.settle(predictor.predict_proba(validation.inputs), validation.labels)
            result |= {f"validation_{name}" if name in task.figures else name: settled[name] for name in settled}
        if data.test is not None:
            estimates = predictor.predict_proba(data.test.inputs)
            result |= task.score(task.decide(estimates), data.test.labels)
            result["num_test"] = len(data.test)
            if (error := reconstruction_error(predictor, data.test)) is not None:
                result["reconstruction_error"] = error
            draw_report(folder, predictor, data.test, estimates, result)
        model.card = {
            "title": folder.name,
            "dataset": config.data,
            "data": f"{data.name}: {data.origin}",
            "terms of the data": data.terms,
        }
        figures = (*task.figures, *(f"validation_{name}" for name in task.figures))
        model.card |= {name: result[name] for name in (*figures, "seed") if name in result}
        save_model(model, folder)
        write_json(folder / RESULT, result)
    return result
