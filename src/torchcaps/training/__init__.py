"""Training: one loop, exact resume, any number of processes.

Names are resolved on first use, so that a configuration can be read without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "Diverged": "diagnosis",
    "Event": "events",
    "Interrupted": "engine",
    "Progress": "events",
    "TrainingConfig": "config",
    "fit": "engine",
}

__all__ = ["Diverged", "Event", "Interrupted", "Progress", "TrainingConfig", "fit"]

if TYPE_CHECKING:
    from torchcaps.training.config import TrainingConfig
    from torchcaps.training.diagnosis import Diverged
    from torchcaps.training.engine import Interrupted, fit
    from torchcaps.training.events import Event, Progress


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps.training' has no attribute {name!r}")
    return getattr(import_module(f"torchcaps.training.{_HOMES[name]}"), name)
