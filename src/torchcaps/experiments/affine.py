"""Digits that are turned, sheared and stretched, recognised after training on upright ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchcaps.data import ImageSet, split_validation
from torchcaps.data.made import make_sets
from torchcaps.experiments.course import NUM_LOOKS, Parts, compare_courses, course_run, when_equal
from torchcaps.experiments.digits import NETWORKS, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.runs import RunConfig, load_run_data

CLEAN, AFFINE = "clean error, %", "affine error, %"
NAMES = {"clean": CLEAN, "affine": AFFINE}
EPOCHS: Mapping[Scale, int] = {"full": 1, "quick": 2}
NUM_TEST: Mapping[Scale, int] = {"full": 3000, "quick": 500}  # placed and distorted digits, at each look
VALIDATION: Mapping[Scale, float] = {"full": 0.05, "quick": 0.1}
PUBLISHED: dict[str, dict[str, float]] = {
    "CNN, 4.2 M": {CLEAN: 0.78, AFFINE: 34.0},
    "dynamic, r = 3": {when_equal(CLEAN): 0.77, when_equal(AFFINE): 21.0},
}


def placed_digits(config: RunConfig) -> Parts:
    """Training digits anywhere on 40 x 40 pixels, new in every epoch; test digits placed alike, and distorted."""
    digits = load_run_data(config)
    assert isinstance(digits.train, ImageSet)
    assert isinstance(digits.test, ImageSet)
    train, affine = make_sets("affnist", digits.train, digits.test)
    clean, _ = make_sets("affnist", digits.test, None)
    assert affine is not None
    train, validation = split_validation(train, config.validation, config.training.seed)
    data = replace(digits, train=train, test=affine)
    return Parts(data=data, validation=validation, tests={"clean": clean, "affine": affine})


def errors(folder: Path) -> dict[str, float]:
    """On placed and on distorted test digits, at the end and when as good as the CNN."""
    return compare_courses(folder, list(NETWORKS), NAMES)


def rows(scale: Scale, data: str) -> list[Row]:
    """The reference first; `data` are single digits."""
    size = {"validation": VALIDATION[scale], "num_test": NUM_TEST[scale]}
    return [
        Row(
            name=name,
            config=digits_run(scale, data, model, epochs=EPOCHS[scale], shift=0, run=size, **options),
            published=PUBLISHED.get(name, {}),
            where="text on affNIST",
            measure=errors,
            run=course_run(placed_digits),
        )
        for name, (model, options) in NETWORKS.items()
    ]


EXPERIMENT = Experiment(
    name="affine",
    title="upright digits learned, distorted digits recognised",
    source='S. Sabour, N. Frosst, G. E. Hinton, "Dynamic routing between capsules", NIPS 2017',
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "a few minutes", "full": "about 45 minutes a seed on one busy core"},
    rows=rows,
    remark="Distorted digits are made here in the style of affNIST (turned within 20 degrees, sheared within 0.2, "
    f"stretched by 0.8 to 1.2), not its files. Every run is looked at {NUM_LOOKS} times, on 3,000 test digits of each "
    "kind; a row is compared with the small CNN at the first look at which its error on held-out training digits "
    "is not above the CNN's at the end; where there is none, the CNN at the first look at which it is as good as the "
    "row at its end.",
)
