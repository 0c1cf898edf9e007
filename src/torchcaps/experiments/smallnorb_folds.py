"""Settings of matrix capsules with a soft start, chosen on all five folds of the training toys of smallNORB."""

from typing import Any

from torchcaps.experiments.harness import Experiment, Row, Scale, validation_error
from torchcaps.experiments.hinton2018 import AUGMENTATION, LOCAL_CONTRAST, norb_run
from torchcaps.experiments.soft_start import FOLDS

EPOCHS: dict[Scale, int] = {"quick": 1, "full": 4}
# Networks that learn fast are not always those that end well: what leads after few epochs is compared again.
LONGER: dict[Scale, int] = {"quick": 2, "full": 12}
CHOSEN = ("base", "t = 1", "norms per example")


def rows(scale: Scale, data: str) -> list[Row]:
    """Rows differ from the first in one thing; the last are some of them again, for longer."""
    variants: list[tuple[str, dict[str, Any]]] = [
        ("base: t = 3, inverse temperature 1/16, global competition, norms per batch", {}),
        ("t = 1", {"routing_options": {"num_iterations": 1}}),
        ("t = 2", {"routing_options": {"num_iterations": 2}}),
        (
            "t = 3 in the class layer, 1 below",
            {"routing_options": {"num_iterations": 1}, "class_routing_options": {"num_iterations": 3}},
        ),
        ("inverse temperature 1/4", {"routing_options": {"inverse_temperature": 1 / 4}}),
        ("inverse temperature from 1/16 to 1/2", {"training": {"inverse_temperature": (1 / 16, 1 / 2)}}),
        ("norms per example", {"norm": "example"}),
        ("window competition", {"routing_options": {"competition": "window"}}),
        ("position competition", {"routing_options": {"competition": "position"}}),
        ("variational Bayes", {"routing": "vb"}),
        ("mixup, shares from Beta(0.2, 0.2)", {"training": {"augmentation": AUGMENTATION, "mixup": 0.2}}),
        ("local contrast", {**LOCAL_CONTRAST, "run": FOLDS | LOCAL_CONTRAST["run"]}),
        ("spread loss", {"training": {"loss": "spread"}}),
        ("cross-entropy", {"training": {"loss": "cross_entropy"}}),
    ]
    common: dict[str, Any] = {"run": FOLDS, "training": {"augmentation": AUGMENTATION}}
    budgets = [(name, changes, EPOCHS[scale]) for name, changes in variants]
    budgets += [
        (f"{name.partition(':')[0]}, trained for longer", changes, LONGER[scale])
        for name, changes in variants
        if name.startswith(CHOSEN)
    ]
    return [
        Row(
            name=name,
            group=f"{epochs} epoch{'s' if epochs > 1 else ''} each",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=epochs, **(common | with_iterations(changes))),
            measure=validation_error,
        )
        for name, changes, epochs in budgets
    ]


def with_iterations(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes that name the number of iterations, so that a run keeps its meaning whatever the default becomes."""
    return changes | {"routing_options": {"num_iterations": 3} | changes.get("routing_options", {})}


EXPERIMENT = Experiment(
    name="smallnorb-folds",
    title="which settings of the soft start generalise to instances never seen",
    source="nothing published; choices for hinton2018",
    data={"quick": "toys", "full": "smallnorb"},
    takes={"quick": "about 3 minutes", "full": "about 90 minutes of one core a seed, reckoned from seconds per step"},
    rows=rows,
    remark="Seeds 0 to 4 hold out each of the five training instances of a category once; no test image is used.",
)
