"""What poses tell and how they follow a moved image, beside the features of networks without capsules."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data import ImageSet
from torchcaps.environment import environment
from torchcaps.experiments.digits import ROUTINGS, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.experiments.hinton2018 import CNN_SETTINGS, norb_run
from torchcaps.experiments.pose_parts import WEIGHT
from torchcaps.experiments.viewpoints import view_parts
from torchcaps.inspection import PROPERTIES, follow, probe_poses, read_features
from torchcaps.inspection.probes import fit_map
from torchcaps.models import Model
from torchcaps.predictor import load
from torchcaps.runs import CONFIG, ENVIRONMENT, MODEL, RESULT, RunConfig, load_run_data, new_model, save_model
from torchcaps.storage import lock_folder, write_json
from torchcaps.training import Event
from torchcaps.training.engine import Trainer

LINE, EVEN, ANGLE = "movement on a line, %", "movement on a line at an even pace, %", "angle between lines, degrees"
TOLD, WRONG = "slant, thickness and width told, %", "test error, %"
VIEWS = ("sine of the azimuth", "cosine of the azimuth", "elevation", "light")
FOLLOWED = "followed.json"
NUM_LIGHTINGS = 6
NUM_ENTRIES = 16  # of a pose; of features as many principal directions within each class
NUM_FOLLOWED: Mapping[Scale, int] = {"full": 300, "quick": 30}
EPOCHS: Mapping[Scale, tuple[int, int]] = {"full": (3, 6), "quick": (1, 1)}  # on digits, on toys
DIGITS, TOYS = "digits moved, turned, scaled, sheared", "toys from new sides"


def entries_of(model: Model) -> int | None:
    """How many principal directions are read; poses are read whole."""
    return None if model.is_routed else NUM_ENTRIES


def follow_digits(scale: Scale, folder: Path) -> dict[str, float]:
    """How poses follow transformations of test digits, means over five of them, and what they tell."""
    model, test = load(folder).model, load_run_data(RunConfig.read(folder)).test
    assert isinstance(test, ImageSet)
    some = slice(0, NUM_FOLLOWED[scale])
    found = follow(
        model,
        test.images[some],
        test.labels[some],
        num_entries=entries_of(model),
        fitted=(test.images, test.labels),
    )
    probes = probe_poses(model, test.images, test.labels, num_entries=entries_of(model))
    kept = {name: asdict(one) for name, one in found.items()}
    told = [[None if np.isnan(value) else value for value in row] for row in probes.r_squared.tolist()]
    write_json(folder / FOLLOWED, {"followed": kept, "properties": PROPERTIES, "r_squared": told})
    answers = load(folder).predict(test.images)
    figures = {
        LINE: 100 * float(np.mean([one.line for one in found.values()])),
        EVEN: 100 * float(np.mean([one.even for one in found.values()])),
        ANGLE: float(np.mean([one.angle for one in found.values()])),
        TOLD: 100 * probes.mean("slant", "thickness", "width"),
        WRONG: 100 * float((answers != test.labels).mean()),
    }
    return {name: value for name, value in figures.items() if not np.isnan(value)}


def view_factors(part: ImageSet) -> np.ndarray:
    """Sine and cosine of the azimuth, elevation, and for each of six lightings whether it is on: (n, 9).

    smallNORB numbers azimuths in tens of degrees.
    """
    azimuth = np.radians(10.0 * part.factors["azimuth"])
    lights = part.factors["lighting"][:, None] == np.arange(NUM_LIGHTINGS)
    return np.column_stack([np.sin(azimuth), np.cos(azimuth), part.factors["elevation"], lights]).astype(np.float64)


def shares_told(told: np.ndarray, true: np.ndarray) -> np.ndarray:
    """R² of each of VIEWS; lightings count together: (n, 9) and (n, 9) -> (4,)."""
    left, all_of_it = ((told - true) ** 2).mean(0), true.var(0)
    left, all_of_it = (np.append(values[:3], values[3:].sum()) for values in (left, all_of_it))
    return 1 - left / all_of_it


def tell_views(folder: Path) -> dict[str, float]:
    """How well maps fitted to toys from known sides tell the views of the same toys from known and from new sides.

    Known sides are told by maps that were fitted to the other half of the pictures.
    """
    model, parts = load(folder).model, view_parts("azimuth", RunConfig.read(folder))
    familiar, novel = parts.tests["familiar azimuth"], parts.tests["novel azimuth"]
    known, new = (read_features(model, part.images, part.labels) for part in (familiar, novel))
    shares: dict[str, list[np.ndarray]] = {"known": [], "new": []}
    for index in range(model.num_classes):
        rows, others = known[familiar.labels == index], new[novel.labels == index]
        views, new_views = view_factors(familiar)[familiar.labels == index], view_factors(novel)[novel.labels == index]
        is_first = np.random.default_rng(0).permutation(len(rows)) % 2 == 0
        tell = fit_map(rows[is_first], views[is_first], entries_of(model))
        shares["known"].append(shares_told(tell(rows[~is_first]), views[~is_first]))
        shares["new"].append(shares_told(tell(others), new_views))
    answers = load(folder).predict(novel.images)
    figures = {
        f"{name}, {side} sides, % told": 100 * float(value)
        for side, values in shares.items()
        for name, value in zip(VIEWS, np.mean(values, axis=0), strict=True)
    }
    return figures | {"error, new sides, %": 100 * float((answers != novel.labels).mean())}


def train_views(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None) -> None:
    """Train on toys from known sides; the last weights are kept."""
    with lock_folder(folder):
        parts = view_parts("azimuth", config)
        torch.manual_seed(config.training.seed)
        model = new_model(replace(config, validation_instances=0), parts.data)
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
        progress = Trainer(model, parts.data.train, None, config.training, folder=folder, on_event=on_event).run()
        save_model(model, folder)
        size = sum(parameter.numel() for parameter in model.parameters())
        write_json(folder / RESULT, {"seconds": round(progress.seconds, 1), "parameters": size})
        assert (folder / MODEL).is_dir()


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` names the digits and the toys, with a comma between them, or one of them."""
    digits, _, toys = (name.strip() for name in data.partition(","))
    return [*_digits(scale, digits), *(_toys(scale, toys) if toys else [])]


def _digits(scale: Scale, data: str) -> list[Row]:
    size: dict[str, Any] = {"num_train": 10_000, "num_test": 3000} if scale == "full" else {}
    networks: list[tuple[str, str, dict[str, Any]]] = [
        (
            name,
            "capsnet-small",
            {"routing": routing, "routing_options": options, "training": {"reconstruction_weight": WEIGHT}},
        )
        for name, (routing, options) in ROUTINGS.items()
    ]
    networks += [
        ("dynamic, r = 3, without reconstruction", "capsnet-small", {"reconstruct": False}),
        ("matrix capsules, EM with t = 2", "matrix-capsnet-small", {"routing_options": {"num_iterations": 2}}),
        ("no routing", "no-routing", {}),
        ("CNN, small", "cnn-small", {}),
    ]
    return [
        Row(
            name=name,
            config=digits_run(scale, data, model, epochs=EPOCHS[scale][0], run=size, **options),
            group=DIGITS,
            measure=partial(follow_digits, scale),
        )
        for name, model, options in networks
    ]


def _toys(scale: Scale, data: str) -> list[Row]:
    size = {"num_test": 3000} if scale == "full" else {"num_test": 200, "num_train": 400}
    networks: list[tuple[str, str, dict[str, Any]]] = [
        ("toys: matrix capsules, EM with t = 2", "matrix-capsnet-small", {"routing": {"num_iterations": 2}}),
        ("toys: CNN, small", "cnn-small", {"training": CNN_SETTINGS}),
        ("toys: CNN, 4.2 M", "cnn-baseline", {"training": CNN_SETTINGS}),
    ]
    return [
        Row(
            name=name,
            config=norb_run(scale, data, model, epochs=EPOCHS[scale][1], run=size, **options),
            group=TOYS,
            measure=tell_views,
            run=train_views,
        )
        for name, model, options in networks
    ]


EXPERIMENT = Experiment(
    name="equivariance",
    title="what poses tell, and whether they follow a moved image along a line",
    source="none",
    data={"quick": "digits", "full": "mnist,toys"},
    takes={"quick": "a few minutes", "full": "about 25 minutes a seed on one core"},
    rows=rows,
    remark="Digits: 10,000 training digits, 3 epochs, reconstructions weigh 0.02; 300 test "
    "digits are moved by up to 2 pixels, turned by up to 15 "
    "degrees, scaled by up to 15 % and sheared by up to 0.2 in nine steps each, means over the five; slant, thickness "
    "and width of 3,000 test digits are told by linear maps, five-fold. Poses of the true class are read whole, of "
    "networks without them the first 16 principal directions of their features within each class. Toys: networks learn "
    "from sides of 300 to 40 degrees; maps are fitted to half of the test toys' pictures from there, and tell the "
    "other half and new sides (60 to 280 degrees) of the same toys.",
)
