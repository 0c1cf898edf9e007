"""What each part of a capsule network is good for on MNIST, and how it learns from few digits, beside a CNN."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps.experiments.digits import ROUTINGS, capsules_with, digits_run
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Row, Scale, test_error
from torchcaps.runs import RESULT

MODEL = "capsnet-small"
EPOCHS: Mapping[Scale, int] = {"full": 2, "quick": 1}
SIZES: Mapping[Scale, tuple[int | None, ...]] = {"full": (100, 1000, 10_000, None), "quick": (100, None)}  # None: all
LEAST_DIGITS: Mapping[Scale, int] = {"full": 60_000, "quick": 1500}  # that even a small set shows, again and again
SECONDS = "seconds of training"
SABOUR = "Sabour et al., table 1"


def error_and_seconds(folder: Path) -> dict[str, float]:
    """The test error, and what it cost."""
    return test_error(folder) | {SECONDS: json.loads((folder / RESULT).read_text(encoding="utf-8"))["seconds"]}


def rows(scale: Scale, data: str) -> list[Row]:
    """Baselines, iterations and reconstruction, routings, weights, squash and temperatures, sizes of the set."""
    return [*_parts(scale, data), *_routings(scale, data), *_variants(scale, data), *_sizes(scale, data)]


def _parts(scale: Scale, data: str) -> list[Row]:
    found: list[tuple[str, str, dict[str, Any], float | None]] = [
        ("CNN, 4.2 M", "cnn-baseline", {}, 0.39),
        ("CNN, small", "cnn-small", {}, None),
        ("no routing", "no-routing", {}, None),
    ]
    for num_iterations, kind, reconstruct, published in (
        (1, "uniform", False, 0.34),
        (1, "uniform", True, 0.29),
        (3, "dynamic, r = 3", False, 0.35),
        (3, "dynamic, r = 3", True, 0.25),
    ):
        name = f"r = {num_iterations}, {'with' if reconstruct else 'without'} reconstruction"
        found.append((name, MODEL, capsules_with(kind, reconstruct=reconstruct), published))
    return [
        Row(
            name=name,
            config=digits_run(scale, data, model, epochs=EPOCHS[scale], **options),
            published={} if published is None else {TEST_ERROR: published},
            where=SABOUR,
            group="iterations of dynamic routing (r = 1 is uniform) and reconstruction",
        )
        for name, model, options, published in found
    ]


def _routings(scale: Scale, data: str) -> list[Row]:
    """Two of them are rows of the group before under their own names; no run is trained twice."""
    group = "routings, two updates each"
    return [_variant(scale, data, name, capsules_with(name, reconstruct=False), group) for name in ROUTINGS]


def _variants(scale: Scale, data: str) -> list[Row]:
    """Every row differs from a routing of the group before in one thing; its weights are factorised."""
    found: list[tuple[str, dict[str, Any]]] = [
        ("full weights", {"sharing": "full"}),
        ("shared weights", {"sharing": "shared"}),
        ("dynamic, squash_k = 0.5", _routing("dynamic", {"num_iterations": 3, "squash_k": 0.5})),
        ("K-Means, squash_k = 0.5", _routing("kmeans", {"num_iterations": 2, "squash_k": 0.5})),
        ("K-Means, inverse temperature 3", _routing("kmeans", {"num_iterations": 2, "inverse_temperature": 3.0})),
        ("entropy, alpha = 1", _routing("entropy", {"num_iterations": 3, "alpha": 1.0})),
        # the alpha of an iteration enters the couplings of the next: the last one has no effect
        ("entropy, alpha = 0.3, then 0.1", _routing("entropy", {"num_iterations": 3, "alpha": [0.3, 0.1, 0.1]})),
    ]
    return [_variant(scale, data, name, options, "weights, squash, temperature") for name, options in found]


def _routing(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"routing": name, "routing_options": options}


def _variant(scale: Scale, data: str, name: str, options: dict[str, Any], group: str) -> Row:
    chosen: dict[str, Any] = {"reconstruct": False, "sharing": "factorised"} | options
    config = digits_run(scale, data, MODEL, epochs=EPOCHS[scale], **chosen)
    return Row(name=name, config=config, group=group, measure=error_and_seconds)


def _sizes(scale: Scale, data: str) -> list[Row]:
    """The fewer digits, the more epochs: a small set is shown until it has been seen as often as is useful."""
    models: dict[str, tuple[str, dict[str, Any]]] = {
        "capsules": (MODEL, capsules_with("dynamic, r = 3", reconstruct=False)),
        "capsules, uniform": (MODEL, capsules_with("uniform", reconstruct=False)),
        "CNN, small": ("cnn-small", {}),
        "no routing": ("no-routing", {}),
    }
    return [
        Row(
            name=f"{size or 'all'} digits: {name}",
            config=digits_run(
                scale,
                data,
                model,
                epochs=max(EPOCHS[scale], round(LEAST_DIGITS[scale] / size)) if size else EPOCHS[scale],
                run={"num_train": size} if size else {},
                **options,
            ),
            group="training digits",
            measure=error_and_seconds,
        )
        for size in SIZES[scale]
        for name, (model, options) in models.items()
    ]


EXPERIMENT = Experiment(
    name="mnist-ablation",
    title="what each part of a small capsule network is good for on MNIST",
    source='S. Sabour, N. Frosst, G. E. Hinton, "Dynamic routing between capsules", NIPS 2017',
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "a few minutes", "full": "about 2 hours a seed on one busy core"},
    rows=rows,
    remark="Ours is CapsNet-Small (142 K parameters), trained for a few epochs on digits moved by up to 2 pixels; the "
    "paper's CapsNet has 8.2 M and was trained to the end. EM trains with the spread loss, its couplings constant for "
    "the gradient; the others with the margin loss. Last weights, tested once.",
)
