"""Published experiments, done again: one file per table. `torchcaps reproduce` runs them."""

from importlib import import_module

from torchcaps.checks import check_choice
from torchcaps.experiments.harness import Experiment

# Name -> module of this folder, which has it as EXPERIMENT. A new experiment is a file and a line here.
EXPERIMENTS = {
    "hinton2018": "hinton2018",
    "smallnorb-choices": "smallnorb_choices",
    "soft-start": "soft_start",
    "smallnorb-folds": "smallnorb_folds",
    "smallnorb-long": "smallnorb_long",
    "zhao2018": "zhao2018",
    "mnist-ablation": "mnist_ablation",
    "multi-digits": "multi_digits",
    "affine": "affine",
    "viewpoints": "viewpoints",
    "attacks": "attacks",
    "votes": "votes",
    "pose-parts": "pose_parts",
    "equivariance": "equivariance",
    "mazzia2021": "mazzia2021",
    "routings": "routings",
    "interests": "interests",
    "sts": "sts",
    "encoders": "encoders",
    "natural": "natural",
    "robustness": "robustness",
    "many-classes": "many_classes",
}


def find_experiment(name: str) -> Experiment:
    """An experiment by name."""
    module = EXPERIMENTS[check_choice("experiment", name, EXPERIMENTS)]
    return import_module(f"torchcaps.experiments.{module}").EXPERIMENT


__all__ = ["EXPERIMENTS", "Experiment", "find_experiment"]
