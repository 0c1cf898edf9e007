"""Photographs and clothes: capsule heads and pooling behind one residual stem, and networks that are capsules alone."""

from collections.abc import Callable
from typing import Any

from torchcaps.data import Augmentation
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Row, Scale
from torchcaps.experiments.mnist_ablation import error_and_seconds
from torchcaps.runs import RunConfig
from torchcaps.training import TrainingConfig

# What stands on the stem -> options of backbone-capsules.
HEADS: dict[str, dict[str, Any]] = {
    "pooling": {"head": "pool"},
    "dynamic": {"head": "dense", "routing": "dynamic"},
    "uniform": {"head": "dense", "routing": "uniform"},
    "inverted attention": {"head": "attention"},
    "EM": {"head": "matrix"},
}
STEM: dict[Scale, str] = {"quick": "resnet-8", "full": "resnet-20"}
EPOCHS: dict[Scale, int] = {"quick": 1, "full": 30}
MATRIX_EPOCHS: dict[Scale, int] = {"quick": 1, "full": 30}
SMALL: dict[Scale, tuple[int, ...]] = {"quick": (200,), "full": (1000, 5000)}
LEAST_PICTURES = 25_000  # that even a small set shows in an epoch of the whole, again and again
AUGMENTATIONS = {
    "CIFAR-10": Augmentation(shift=4, mirror="plain"),
    "Fashion-MNIST": Augmentation(shift=2, mirror="plain"),
}
PHOTOGRAPHS, CLOTHES = "CIFAR-10", "Fashion-MNIST"
ERROR_OF_HINTON, ERROR_OF_SABOUR = 11.9, 10.6


def picture_run(
    scale: Scale, data: str, model: str, *, augmentation: str, epochs: int, num_train: int | None = None, **options: Any
) -> RunConfig:
    """A run on pictures that are shifted and mirrored; the best epoch is chosen on a twentieth of the training set."""
    sizes: dict[str, Any] = {"num_train": num_train}
    if scale == "quick":
        sizes = {"num_train": num_train or 400, "num_test": 200}
    return RunConfig(
        data=data,
        model=model,
        model_options=options,
        scaling="standardise",
        validation=0.05,
        training=TrainingConfig(
            epochs=epochs,
            batch_size=32 if scale == "quick" else 64,
            learning_rate=3e-3,
            weight_decay=0.05,
            augmentation=AUGMENTATIONS[augmentation],
        ),
        **sizes,
    )


def head_rows(
    scale: Scale, data: str, name: str, measure: Callable[..., dict[str, float]] = error_and_seconds
) -> list[Row]:
    """One row for each head on the stem: the same stem, steps and pictures."""
    return [
        Row(
            name=f"{name}: {head}",
            config=picture_run(
                *(scale, data, "backbone-capsules"),
                augmentation=name,
                epochs=EPOCHS[scale],
                backbone=STEM[scale],
                **options,
            ),
            group=f"{name}, {STEM[scale]}",
            measure=measure,
        )
        for head, options in HEADS.items()
    ]


def rows(scale: Scale, data: str) -> list[Row]:
    """Heads on the stem for both sets, from few photographs, and networks without a stem."""
    clothes = "fashion-mnist" if scale == "full" else data
    found = [*head_rows(scale, data, PHOTOGRAPHS), *head_rows(scale, clothes, CLOTHES)]
    return [*found, *_whole(scale, data, clothes), *_few(scale, data)]


def _whole(scale: Scale, photographs: str, clothes: str) -> list[Row]:
    """CapsNet, and matrix capsules with A = 256 and the small ones, as they are without another network in front."""
    matrix = ("matrix-capsnet", {"channels": 256}) if scale == "full" else ("matrix-capsnet-small", {})
    capsnet = ("capsnet" if scale == "full" else "capsnet-small", {"reconstruct": False})
    found: list[tuple[str, str, str, tuple[str, dict[str, Any]], dict[str, float], str]] = [
        (PHOTOGRAPHS, photographs, "CapsNet", capsnet, {TEST_ERROR: ERROR_OF_SABOUR}, "Sabour et al., section 7"),
        (PHOTOGRAPHS, photographs, "matrix capsules, A = 256", matrix, {TEST_ERROR: ERROR_OF_HINTON}, "Hinton et al."),
        (PHOTOGRAPHS, photographs, "matrix capsules, small", ("matrix-capsnet-small", {}), {}, ""),
        (CLOTHES, clothes, "CapsNet-Small", ("capsnet-small", {"reconstruct": False}), {}, ""),
        (CLOTHES, clothes, "matrix capsules, small", ("matrix-capsnet-small", {}), {}, ""),
    ]
    return [
        Row(
            name=f"{name}: {network}",
            config=picture_run(scale, data, model, augmentation=name, epochs=MATRIX_EPOCHS[scale], **options),
            group=f"{name}, capsules alone",
            published=published if scale == "full" else {},
            where=where if scale == "full" else "",
            measure=error_and_seconds,
        )
        for name, data, network, (model, options), published, where in found
    ]


def _few(scale: Scale, data: str) -> list[Row]:
    """The fewer photographs, the more epochs, until they have been shown as often as is useful."""
    return [
        Row(
            name=f"{size} photographs: {head}",
            config=picture_run(
                *(scale, data, "backbone-capsules"),
                augmentation=PHOTOGRAPHS,
                epochs=EPOCHS[scale] * (LEAST_PICTURES // size if scale == "full" else 1) // 5 + 1,
                num_train=size,
                backbone=STEM[scale],
                **HEADS[head],
            ),
            group="few photographs",
            measure=error_and_seconds,
        )
        for size in SMALL[scale]
        for head in ("pooling", "dynamic", "inverted attention", "EM")
    ]


EXPERIMENT = Experiment(
    name="natural",
    title="capsule heads and pooling behind one residual stem, on photographs and clothes",
    source='S. Sabour, N. Frosst, G. E. Hinton, "Dynamic routing between capsules", NIPS 2017, an ensemble of seven; '
    'G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018',
    data={"quick": "digits", "full": "cifar10"},
    takes={
        "quick": "a few minutes",
        "full": "about an hour of one core for the stem under each head, reckoned from seconds per step; heads, and "
        "networks without a stem, were not timed",
    },
    rows=rows,
    remark="ResNet-20 (272 K parameters with its pooling) in front of every head, the same steps, pictures, learning "
    "rate and weight decay; photographs shifted by up to 4 pixels and mirrored, clothes by up to 2. The best of 30 "
    "epochs on a twentieth of the training pictures, tested once.",
)
