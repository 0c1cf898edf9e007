"""What poses tell and how they follow a moved image, beside the features of networks without capsules."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data import ImageSet
from torchcaps.experiments import toy_views
from torchcaps.experiments.digits import ROUTINGS, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.experiments.pose_parts import WEIGHT
from torchcaps.experiments.toy_views import entries_of
from torchcaps.inspection import PROPERTIES, follow, probe_poses
from torchcaps.predictor import load
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.storage import write_json

LINE, EVEN, ANGLE = "movement on a line, %", "movement on a line at an even pace, %", "angle between lines, degrees"
TOLD, WRONG = "slant, thickness and width told, %", "test error, %"
FOLLOWED = "followed.json"
NUM_FOLLOWED: Mapping[Scale, int] = {"full": 300, "quick": 30}
EPOCHS: Mapping[Scale, int] = {"full": 3, "quick": 1}
DIGITS = "digits moved, turned, scaled, sheared"


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


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` names the digits and the toys, with a comma between them, or one of them."""
    digits, _, toys = (name.strip() for name in data.partition(","))
    return [*_digits(scale, digits), *(toy_views.rows(scale, toys) if toys else [])]


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
        (
            "matrix capsules, EM with t = 2",
            "matrix-capsnet-small",
            {"variant": "paper", "routing_options": {"num_iterations": 2}},
        ),
        (
            "matrix capsules that start soft, EM with t = 3",
            "matrix-capsnet-small",
            {"routing_options": {"num_iterations": 3}},
        ),
        ("no routing", "no-routing", {}),
        ("CNN, small", "cnn-small", {}),
    ]
    return [
        Row(
            name=name,
            config=digits_run(scale, data, model, epochs=EPOCHS[scale], run=size, **options),
            group=DIGITS,
            measure=partial(follow_digits, scale),
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
    "networks without them the first 16 principal directions of their features within each class. Toys, rendered: "
    "networks learn from sides of 300 to 40 degrees, 8 epochs; linear maps of each class tell the sine and cosine of "
    "the azimuth, the elevation and which of six lights is on, of 3,000 pictures from those sides and 3,000 from all "
    "others, of toys that were not trained on. Known sides: fitted to half of the former, told of the other half; new "
    "sides: the same maps, told of the latter; sides between: fitted to every second side of all, told of the others. "
    "Whoever always says the middle is 30 degrees off on known sides, 120 on new ones; a guess is 90 degrees off.",
)
