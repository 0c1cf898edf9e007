"""Matrix capsules with what held-out toys chose: trained for long, part by part, from few toys, on digits."""

from collections.abc import Mapping
from typing import Any

from torchcaps.experiments.digits import digits_run
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Row, Scale, over_crops, test_error_over_crops
from torchcaps.experiments.hinton2018 import CNN_SETTINGS, NUM_CROPS, SETTINGS, norb_run
from torchcaps.runs import RunConfig

SMALL = "matrix-capsnet-small"
# What smallnorb-folds favours, beyond the defaults of the network; named, so that a run keeps its meaning.
CHOSEN: Mapping[str, Any] = {"num_iterations": 3}
# Of the small networks, of the large one, and of every row of the tables.
EPOCHS: Mapping[Scale, tuple[int, int, int]] = {"full": (100, 60, 12), "quick": (2, 1, 1)}
NUM_TOYS = 5  # of each kind, to learn from


def rows(scale: Scale, data: str) -> list[Row]:
    """Long training, table 1 with the new network, one to five toys of each kind, digits."""
    return [*_long(scale, data), *_table_1(scale, data), *_few_toys(scale, data), _digits(scale)]


def _capsules(scale: Scale, data: str, epochs: int, *, model: str = SMALL, **changes: Any) -> RunConfig:
    options = dict(CHOSEN) | changes.pop("routing_options", {})
    return norb_run(scale, data, model, epochs=epochs, **{"routing_options": options, **changes})


def _long(scale: Scale, data: str) -> list[Row]:
    small, large, _ = EPOCHS[scale]
    cnn = {"training": CNN_SETTINGS}
    runs = {
        f"small, {small} epochs": (_capsules(scale, data, small), 2.2, None),
        f"small with t = 1, {small} epochs": (
            _capsules(scale, data, small, routing_options={"num_iterations": 1}),
            None,
            None,
        ),
        f"large, {large} epochs": (_capsules(scale, data, large, model="matrix-capsnet"), 1.8, 1.4),
        f"CNN, small, {small} epochs": (norb_run(scale, data, "cnn-small", epochs=small, **cnn), None, None),
        f"no routing, norms, {small} epochs": (
            norb_run(scale, data, "matrix-no-routing", epochs=small, batch_norm=True, **cnn),
            None,
            None,
        ),
    }
    return [
        Row(
            name=name,
            config=config,
            published={
                measured: figure
                for measured, figure in ((TEST_ERROR, centre), (over_crops(NUM_CROPS), crops))
                if figure is not None
            },
            where="text on experiments",
            group="trained for long",
            measure=test_error_over_crops(NUM_CROPS),
        )
        for name, (config, centre, crops) in runs.items()
    ]


def _table_1(scale: Scale, data: str) -> list[Row]:
    """Every row differs from the first in one thing, as far as table 1 of the paper goes."""
    epochs = EPOCHS[scale][2]
    variants: list[tuple[str, dict[str, Any], float | None]] = [
        ("base: t = 3, coordinates, matrices, entropy activation, softmax cross-entropy", {}, 1.8),
        ("t = 1", {"routing_options": {"num_iterations": 1}}, 9.7),
        ("t = 2", {"routing_options": {"num_iterations": 2}}, 2.2),
        ("t = 5", {"routing_options": {"num_iterations": 5}}, 3.9),
        ("no coordinates", {"coordinates": False}, 2.6),
        ("vector poses", {"pose": "vector"}, 2.9),
        ("margin loss", {"training": {"loss": "margin"}}, 3.2),
        ("cross-entropy", {"training": {"loss": "cross_entropy"}}, 5.8),
        ("spread loss", {"training": {"loss": "spread"}}, 1.8),
        ("mixing activation", {"routing_options": {"activation": "mixing"}}, 4.5),
        ("mdl activation", {"routing_options": {"activation": "mdl"}}, 1.8),
    ]
    return [
        Row(
            name=name,
            config=_capsules(scale, data, epochs, **changes),
            published={} if published is None else {TEST_ERROR: published},
            where="table 1",
            group=f"table 1 with a soft start, {epochs} epoch{'s' if epochs > 1 else ''} each",
        )
        for name, changes, published in variants
    ]


def _few_toys(scale: Scale, data: str) -> list[Row]:
    """The fewer toys, the more epochs, so that all take equally many steps; the toys left out are looked at alone."""
    epochs = EPOCHS[scale][2]
    found = []
    for number in range(1, NUM_TOYS + 1):
        size: dict[str, Any] = {
            "epochs": epochs * NUM_TOYS // number,
            "run": {"validation_instances": NUM_TOYS - number},
        }
        networks = {
            "capsules": _capsules(scale, data, **size),
            "CNN, small": norb_run(scale, data, "cnn-small", training=CNN_SETTINGS, **size),
        }
        found += [
            Row(name=f"{number} of each kind: {name}", config=config, group="few toys")
            for name, config in networks.items()
        ]
    return found


def _digits(scale: Scale) -> Row:
    data, epochs = ("mnist" if scale == "full" else "digits"), EPOCHS[scale][2]
    return Row(
        name="MNIST, small",
        config=digits_run(
            *(scale, data, SMALL),
            epochs=epochs,
            routing_options=dict(CHOSEN),
            training={"learning_rate": SETTINGS["learning_rate"], "ema": SETTINGS["ema"]},
        ),
        published={TEST_ERROR: 0.44},
        where="text on experiments",
        group="digits",
    )


EXPERIMENT = Experiment(
    name="smallnorb-long",
    title="matrix capsules with a soft start: trained for long, table 1, few toys, digits",
    source='G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018',
    data={"quick": "toys", "full": "smallnorb"},
    takes={
        "quick": "about 5 minutes",
        "full": "about 25 hours of one core for the first seed, reckoned from seconds per epoch",
    },
    rows=rows,
    remark="Test read once, after the last epoch; with fewer than five toys of each kind the best epoch on those left "
    "out is taken. The paper's table 1 is about the large network trained to the end.",
)
