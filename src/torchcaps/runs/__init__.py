"""A training run from data to report, in one folder: config, environment, metrics, checkpoints, model, result."""

from torchcaps.runs.building import KINDS, new_model
from torchcaps.runs.configuration import CONFIG, ENVIRONMENT, MISTAKES, MODEL, REPORT, RESULT, RunConfig
from torchcaps.runs.data import hold_out, load_run_data, training_parts
from torchcaps.runs.reporting import save_model
from torchcaps.runs.running import run

__all__ = [
    "CONFIG",
    "ENVIRONMENT",
    "KINDS",
    "MISTAKES",
    "MODEL",
    "REPORT",
    "RESULT",
    "RunConfig",
    "hold_out",
    "load_run_data",
    "new_model",
    "run",
    "save_model",
    "training_parts",
]
