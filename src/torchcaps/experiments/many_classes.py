"""Accuracy against the number of classes: a digit beside a garment, 10 to 200 classes, capsules beside a CNN."""

from typing import Any

from torchcaps.data import Augmentation
from torchcaps.data.made_pairs import SHAPES
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.experiments.mnist_ablation import error_and_seconds
from torchcaps.runs import RunConfig
from torchcaps.training import TrainingConfig

# Name -> model, its options, and options of the training.
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "CNN, small": ("cnn-small", {}, {}),
    "dynamic, margin loss": ("capsnet-small", {"reconstruct": False}, {"loss": "margin"}),
    "dynamic, spread loss": ("capsnet-small", {"reconstruct": False}, {"loss": "spread"}),
    "dynamic, cross-entropy of activations": ("capsnet-small", {"reconstruct": False}, {"loss": "cross_entropy"}),
    "attention on a stem": ("backbone-capsules", {"backbone": "resnet-8", "head": "attention"}, {}),
    "EM on a stem": ("backbone-capsules", {"backbone": "resnet-8", "head": "matrix"}, {}),
    "pooling on a stem": ("backbone-capsules", {"backbone": "resnet-8", "head": "pool"}, {}),
}
NUM_TRAIN: dict[Scale, int] = {"quick": 300, "full": 12_000}  # as many as there are pairs of two digits
EPOCHS: dict[Scale, int] = {"quick": 1, "full": 8}


def rows(scale: Scale, data: str) -> list[Row]:
    """Every network with every number of classes; as many pictures and steps for all."""
    numbers = SHAPES if scale == "full" and data == "pairs" else (None,)
    return [
        Row(
            name=f"{number or data} classes: {name}",
            config=RunConfig(
                data=data if number is None else f"{data}-{number}",
                model=model,
                model_options=options,
                num_train=NUM_TRAIN[scale],
                num_test=200 if scale == "quick" else None,
                validation=0.05,
                training=TrainingConfig(epochs=EPOCHS[scale], augmentation=Augmentation(shift=2), **training),
            ),
            group=f"{number or data} classes",
            measure=error_and_seconds,
        )
        for number in numbers
        for name, (model, options, training) in NETWORKS.items()
    ]


EXPERIMENT = Experiment(
    name="many-classes",
    title="capsules and a CNN with 10 to 200 classes",
    source="nothing published; learning is often said to stall beyond a dozen classes",
    data={"quick": "digits", "full": "pairs"},
    takes={
        "quick": "a few minutes",
        "full": "about 6 minutes of one core for a row of CapsNet-Small, from seconds per step; stems not timed",
    },
    rows=rows,
    remark="A digit beside a garment, drawn anew in every epoch; test pairs are made of digits and garments that "
    "training never sees. 12,000 training pairs an epoch with any number of classes, 8 epochs; the best of them on a "
    "twentieth that is held out, tested once.",
)
