"""What the experiments on digits have in common: one pipeline, and the routings at equal numbers of updates."""

from typing import Any

from torchcaps.data import Augmentation
from torchcaps.experiments.harness import Scale
from torchcaps.models.capsnet import FORMER
from torchcaps.runs import RunConfig
from torchcaps.training import TrainingConfig

# Name -> routing and its options. Each changes its couplings twice: K-Means replaces them at the start of an iteration,
# the others leave them uniform in the first.
ROUTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic, r = 3": ("dynamic", {"num_iterations": 3}),
    "K-Means, r = 2": ("kmeans", {"num_iterations": 2}),
    "entropy, r = 3": ("entropy", {"num_iterations": 3}),
    "EM, t = 3": ("em", {"num_iterations": 3}),
    "uniform": ("uniform", {}),
}


def capsules_with(name: str, *, reconstruct: bool) -> dict[str, Any]:
    """Options of CapsNet-Small with one of these routings; all else is as it was when the experiments were run."""
    routing, options = ROUTINGS[name]
    former = FORMER if reconstruct else {"sharing": FORMER["sharing"]}
    return {"routing": routing, "routing_options": options, "reconstruct": reconstruct, **former}


# Name -> model and its options: capsules with every routing, and what stands beside them.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "CNN, small": ("cnn-small", {}),
    "no routing": ("no-routing", {}),
    **{name: ("capsnet-small", capsules_with(name, reconstruct=False)) for name in ROUTINGS},
    "dynamic, r = 3, with reconstruction": ("capsnet-small", capsules_with("dynamic, r = 3", reconstruct=True)),
    "CNN, 4.2 M": ("cnn-baseline", {}),
}
PAPERS_WEIGHT = 0.0005  # of the reconstruction
QUICK_SIZE: dict[str, int] = {"num_train": 1500, "num_test": 500}


def digits_run(
    scale: Scale,
    data: str,
    model: str,
    *,
    epochs: int,
    shift: int = 2,
    training: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    **options: Any,
) -> RunConfig:
    """A run on digits that are moved by up to `shift` pixels; nothing is held out and the last weights are taken.

    Args:
        scale: "quick" takes few digits and smaller batches.
        data: name or path.
        model: name of the model.
        epochs: how long to train.
        shift: pixels.
        training: more of the TrainingConfig.
        run: more of the RunConfig.
        **options: of the model.
    """
    settings: dict[str, Any] = {"batch_size": 32 if scale == "quick" else 64, "reconstruction_weight": PAPERS_WEIGHT}
    settings |= training or {}
    more: dict[str, Any] = {"validation": 0.0, **(QUICK_SIZE if scale == "quick" else {}), **(run or {})}
    return RunConfig(
        data=data,
        model=model,
        model_options=options,
        training=TrainingConfig(epochs=epochs, augmentation=Augmentation(shift=shift), **settings),
        **more,
    )
