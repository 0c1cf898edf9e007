"""Capsule networks done right: every routing behind one API, exact, stable and fast.

Names are resolved on first use, so that `import torchcaps` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_SUBMODULES = (
    "capsules",
    "clustering",
    "data",
    "estimators",
    "inputs",
    "losses",
    "models",
    "nn",
    "routing",
    "schedules",
    "tasks",
    "training",
    "viz",
    "votes",
)
_HOMES = {
    "Capsules": "capsules",
    "create_model": "models",
    "list_models": "models",
    "load": "predictor",
    "normalise": "capsules",
    "squash": "capsules",
}

__all__ = [
    "Capsules",
    "__version__",
    "capsules",
    "clustering",
    "create_model",
    "data",
    "estimators",
    "inputs",
    "list_models",
    "load",
    "losses",
    "models",
    "nn",
    "normalise",
    "routing",
    "schedules",
    "squash",
    "tasks",
    "training",
    "viz",
    "votes",
]

if TYPE_CHECKING:
    from torchcaps import (
        capsules,
        clustering,
        data,
        inputs,
        losses,
        models,
        nn,
        routing,
        schedules,
        tasks,
        training,
        viz,
        votes,
    )
    from torchcaps.capsules import Capsules, normalise, squash
    from torchcaps.models import create_model, list_models
    from torchcaps.predictor import load


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"torchcaps.{_HOMES[name]}"), name)
    if name in _SUBMODULES:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
