"""Photographs and clothes: capsule heads and pooling behind one residual stem, and networks that are capsules alone."""

from collections.abc import Callable, Mapping
from typing import Any

from torchcaps.data import Augmentation
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Row, Scale, validation_error
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
EPOCHS: dict[str, dict[Scale, int]] = {
    "CIFAR-10": {"quick": 1, "full": 20},
    "Fashion-MNIST": {"quick": 1, "full": 12},
}
# Of networks that are capsules alone, the large one apart: an epoch of it takes as long as all of theirs.
WHOLE_EPOCHS: dict[Scale, tuple[int, int]] = {"quick": (1, 1), "full": (12, 4)}
# The rate of each head is the best on held-out photographs, after few epochs of a part of the others.
CHOICE, RATES = "choice of the learning rate", (1e-3, 3e-3, 1e-2)
RATE = 3e-3
CHOSEN_RATES: dict[str, float] = {}
CHOICE_SIZE, CHOICE_EPOCHS = 15_000, 6  # a third of them held out
SMALL: dict[Scale, tuple[int, ...]] = {"quick": (200,), "full": (1000, 5000)}
LEAST_PICTURES = 25_000  # that even a small set shows in an epoch of the whole, again and again
AUGMENTATIONS = {
    "CIFAR-10": Augmentation(shift=4, mirror="plain"),
    "Fashion-MNIST": Augmentation(shift=2, mirror="plain"),
}
PHOTOGRAPHS, CLOTHES = "CIFAR-10", "Fashion-MNIST"
ERROR_OF_HINTON, ERROR_OF_SABOUR = 11.9, 10.6


def picture_run(
    scale: Scale,
    data: str,
    model: str,
    *,
    augmentation: str,
    epochs: int,
    rate: float = RATE,
    run: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunConfig:
    """A run on pictures that are shifted and mirrored; the best epoch is chosen on a twentieth of the training set."""
    more: dict[str, Any] = {"validation": 0.05}
    more |= {"num_train": 400, "num_test": 200} if scale == "quick" else {}
    more |= run or {}
    return RunConfig(
        data=data,
        model=model,
        model_options=options,
        scaling="standardise",
        training=TrainingConfig(
            epochs=epochs,
            batch_size=32 if scale == "quick" else 64,
            learning_rate=rate,
            weight_decay=0.05,
            precision="bf16",
            augmentation=AUGMENTATIONS[augmentation],
        ),
        **more,
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
                epochs=EPOCHS[name][scale],
                rate=CHOSEN_RATES.get(head, RATE),
                backbone=STEM[scale],
                **options,
            ),
            group=f"{name}, {STEM[scale]}",
            measure=measure,
        )
        for head, options in HEADS.items()
    ]


def rows(scale: Scale, data: str) -> list[Row]:
    """The rate of each head, heads on the stem for both sets, from few photographs, and networks without a stem."""
    clothes = "fashion-mnist" if scale == "full" else data
    found = [*_choice(scale, data), *head_rows(scale, data, PHOTOGRAPHS), *head_rows(scale, clothes, CLOTHES)]
    return [*found, *_whole(scale, data, clothes), *_few(scale, data)]


def _choice(scale: Scale, data: str) -> list[Row]:
    size = {"num_train": CHOICE_SIZE, "validation": 1 / 3} if scale == "full" else {}
    return [
        Row(
            name=f"{head}, rate {rate:g}",
            config=picture_run(
                *(scale, data, "backbone-capsules"),
                augmentation=PHOTOGRAPHS,
                epochs=CHOICE_EPOCHS if scale == "full" else 1,
                rate=rate,
                run={**size, "num_test": 0},
                backbone=STEM[scale],
                **options,
            ),
            group=CHOICE,
            measure=validation_error,
        )
        for head, options in HEADS.items()
        for rate in RATES
    ]


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
            config=picture_run(
                *(scale, data, model),
                augmentation=name,
                epochs=WHOLE_EPOCHS[scale][model in ("capsnet", "matrix-capsnet")],
                **options,
            ),
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
                epochs=EPOCHS[PHOTOGRAPHS][scale] * (LEAST_PICTURES // size if scale == "full" else 1) // 5 + 1,
                rate=CHOSEN_RATES.get(head, RATE),
                run={"num_train": size},
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
        "full": "about four hours of one core a seed for the heads on the photographs, two on the clothes, one for the "
        "choices, reckoned from seconds per step; networks without a stem were not timed",
    },
    rows=rows,
    remark="ResNet-20 (272 K parameters with its pooling) in front of every head, the same steps, pictures and weight "
    "decay, convolutions in bfloat16; photographs shifted by up to 4 pixels and mirrored, clothes by up to 2. The "
    "learning rate of each head was chosen on held-out photographs; the best of 20 epochs (clothes: 12) on a twentieth "
    "of the training pictures, tested once.",
)
