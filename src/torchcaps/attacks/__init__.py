"""Attacks on classifiers of images: small changes of the pixels that change the answer, and how much they need."""

from torchcaps.attacks.measure import GradientStatistics, Outcome, gradient_statistics, predictions, sweep, transfer
from torchcaps.attacks.perturb import LOSSES, METHODS, Method, input_gradient, perturb

__all__ = [
    "LOSSES",
    "METHODS",
    "GradientStatistics",
    "Method",
    "Outcome",
    "gradient_statistics",
    "input_gradient",
    "perturb",
    "predictions",
    "sweep",
    "transfer",
]
