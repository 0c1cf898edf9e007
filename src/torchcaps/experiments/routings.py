"""Every routing in the same networks: what it is worth, and what it costs."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from torchcaps.benchmark.memory import peak_bytes
from torchcaps.experiments.digits import digits_run
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Measure, Row, Scale, test_error, validation_error
from torchcaps.experiments.hinton2018 import norb_run
from torchcaps.experiments.multi_digits import BOTH_WRONG, LEARNING_RATE, SHIFT, side_by_side_error
from torchcaps.experiments.table import Line
from torchcaps.experiments.zhao2018 import text_run
from torchcaps.models import Model
from torchcaps.predictor import load
from torchcaps.routing import find_routing, routing_names
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.viz.trade_off import Mark, trade_off

STEP, MEMORY = "CPU seconds of a training step of 64", "peak memory of that step, MB"
NUM_TIMED, BATCH = 5, 64
UPDATES = 2  # of the couplings
NO_ROUTING = "no routing"
# Digits of the training set, and epochs: each group has one number of optimiser steps.
DIGITS: Mapping[Scale, Mapping[str, tuple[int | None, int]]] = {
    "full": {"1,000 digits": (1000, 50), "10,000 digits": (10_000, 8), "60,000 digits": (None, 3)},
    "quick": {"1,000 digits": (1000, 1)},
}
# Rates are tried with 10,000 digits, 5,000 others held out: the best for each routing is used with any number of them.
CHOICE, RATES, NUM_HELD_OUT = "choice of the learning rate", (1e-3, 3e-3, 1e-2, 3e-2), 5000
CHOICE_SIZE: Mapping[Scale, tuple[int, int]] = {"full": (10_000, 4), "quick": (1000, 1)}
RATE = 3e-3
CHOSEN_RATES: Mapping[str, float] = {
    **dict.fromkeys(("heinsen", "vb"), 1e-3),
    **dict.fromkeys(("attention", "em", "uniform"), 1e-2),
    **dict.fromkeys(("max_min", "self"), 3e-2),
}
NORB_EPOCHS: Mapping[Scale, int] = {"full": 8, "quick": 1}
TEXTS: Mapping[Scale, tuple[str, ...]] = {"full": ("trec", "mr"), "quick": ("movie-snippets",)}
NORB, SIDE_BY_SIDE = "smallNORB", "two digits side by side"


def routing_options(name: str) -> dict[str, Any]:
    """A routing with so many iterations that it changes its couplings UPDATES times, if it has any."""
    return {"routing": name, "routing_options": find_routing(name).with_updates(UPDATES)}


def with_cost(measure: Measure, folder: Path) -> dict[str, float]:
    """What a run got wrong, and what a step of its training costs."""
    return measure(folder) | step_cost(load(folder).model, RunConfig.read(folder))


def step_cost(model: Model, config: RunConfig) -> dict[str, float]:
    """Processor time and memory of a forward and a backward pass; the time hardly depends on what else is running."""
    inputs = model.preprocessing(load_run_data(config).train.inputs[:BATCH])

    def step() -> None:
        model.zero_grad()
        model(inputs).scores.sum().backward()

    model.train()
    step()
    peak, seconds = peak_bytes(step), []
    for _ in range(NUM_TIMED):
        before = time.process_time()
        step()
        seconds.append(time.process_time() - before)
    return {STEP: median(seconds)} | ({} if peak is None else {MEMORY: peak / 2**20})


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` are digits; toys and texts are named here."""
    return [*_choice(scale, data), *_digits(scale, data), *_side_by_side(scale, data), *_norb(scale), *_texts(scale)]


def _row(group: str, name: str, config: RunConfig, measure: Measure = test_error) -> Row:
    label = find_routing(name).english if name in routing_names() else name
    return Row(name=f"{group}: {label}", config=config, group=group, measure=partial(with_cost, measure))


def _choice(scale: Scale, data: str) -> list[Row]:
    num_train, epochs = CHOICE_SIZE[scale]
    num_held_out = NUM_HELD_OUT if scale == "full" else 500
    held_out = {"num_train": num_train + num_held_out, "validation": num_held_out / (num_train + num_held_out)}
    return [
        Row(
            name=f"{find_routing(name).english}, rate {rate:g}",
            config=_capsules(scale, data, name, epochs, rate=rate, run={**held_out, "num_test": 0}),
            group=CHOICE,
            measure=validation_error,
        )
        for name in routing_names()
        for rate in RATES
    ]


def _capsules(scale: Scale, data: str, name: str, epochs: int, *, rate: float | None = None, **more: Any) -> RunConfig:
    rate = CHOSEN_RATES.get(name, RATE) if rate is None else rate
    return digits_run(
        *(scale, data, "capsnet-small"),
        epochs=epochs,
        training={"learning_rate": rate},
        reconstruct=False,
        **routing_options(name),
        **more,
    )


def _digits(scale: Scale, data: str) -> list[Row]:
    found = []
    for group, (num_train, epochs) in DIGITS[scale].items():
        run = {"num_train": num_train}
        found += [_row(group, name, _capsules(scale, data, name, epochs, run=run)) for name in routing_names()]
        for name, model in ((NO_ROUTING, "no-routing"), ("CNN, small", "cnn-small")):
            found.append(_row(group, name, digits_run(scale, data, model, epochs=epochs, run=run)))
    return found


def _side_by_side(scale: Scale, data: str) -> list[Row]:
    """Trained on single digits, tested on two beside each other with the same weights."""
    models = {name: ("capsnet-shared", routing_options(name)) for name in routing_names()}
    return [
        _row(
            SIDE_BY_SIDE,
            name,
            digits_run(
                *(scale, data, model), epochs=1, shift=SHIFT, training={"learning_rate": LEARNING_RATE}, **options
            ),
            side_by_side_error,
        )
        for name, (model, options) in {**models, "CNN, small": ("cnn-small", {})}.items()
    ]


def _norb(scale: Scale) -> list[Row]:
    data, epochs = ("smallnorb" if scale == "full" else "toys"), NORB_EPOCHS[scale]
    models = {name: ("matrix-capsnet-small", routing_options(name)) for name in routing_names()}
    models |= {NO_ROUTING: ("matrix-no-routing", {}), "CNN, small": ("cnn-small", {})}
    return [
        _row(NORB, name, norb_run(scale, data, model, epochs=epochs, **options))
        for name, (model, options) in models.items()
    ]


def _texts(scale: Scale) -> list[Row]:
    models = {name: ("text-capsule-a", routing_options(name)) for name in routing_names()}
    models |= {NO_ROUTING: ("text-no-routing", {}), "Kim's CNN": ("text-cnn", {})}
    return [
        _row(f"texts, {data}", name, text_run(scale, data, model, **options))
        for data in TEXTS[scale]
        for name, (model, options) in models.items()
    ]


def draw(lines: Sequence[Line], title: str, caption: str) -> Figure:
    """Accuracy against the time of a step, a panel for each network and set, a mark for each routing."""
    seconds = {line.name: line.mean for line in lines if line.measured == STEP}
    marks = [
        Mark(line.group, line.name.removeprefix(f"{line.group}: "), cost, 100 - line.mean, line.deviation)
        for line in lines
        if line.measured == (BOTH_WRONG if line.group == SIDE_BY_SIDE else TEST_ERROR)
        and line.mean is not None
        and (cost := seconds.get(line.name)) is not None
    ]
    return trade_off(marks, title=title, caption=caption)


EXPERIMENT = Experiment(
    name="routings",
    title="every routing in the same networks",
    source="nothing published: no one has compared them",
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "about 20 minutes", "full": "about 10 hours of one core for the first seed"},
    rows=rows,
    draw=draw,
    remark=f"Couplings change {UPDATES} times, but for uniform, self-routing and self-attention, which have no "
    "iterations; all networks of a group take equally many steps of the optimiser. CapsNet-Small without decoder on "
    "digits (its learning rate was chosen for each routing on held-out training digits), capsules with shared "
    "transformations on two digits side by side, the small matrix network with a soft start on smallNORB, Capsule-A on "
    "texts; last weights, tested once. Time and memory are of one step of 64 examples, forward and backward.",
)
