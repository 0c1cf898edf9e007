"""Capsule networks as scikit-learn estimators; names are resolved on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {"CapsuleImageClassifier": "image", "CapsuleTextClassifier": "text"}

__all__ = ["EXPECTED_FAILED_CHECKS", "CapsuleImageClassifier", "CapsuleTextClassifier"]

# Checks of scikit-learn that an estimator does not pass, with the reason; for `check_estimator`.
EXPECTED_FAILED_CHECKS: dict[str, dict[str, str]] = {"CapsuleImageClassifier": {}}

if TYPE_CHECKING:
    from torchcaps.estimators.image import CapsuleImageClassifier
    from torchcaps.estimators.text import CapsuleTextClassifier


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps.estimators' has no attribute {name!r}")
    return getattr(import_module(f"torchcaps.estimators.{_HOMES[name]}"), name)
