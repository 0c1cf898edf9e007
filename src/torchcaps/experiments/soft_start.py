"""What made matrix capsules learn: from the network of the paper to the new one, part after part."""

from typing import Any

from torchcaps.experiments.harness import Experiment, Row, Scale, validation_error
from torchcaps.experiments.hinton2018 import norb_run
from torchcaps.models.matrix import SOFT

# Seeds 0 to 4 hold out each of the five instances of a category once; the test images are not looked at.
FOLDS = {"validation_instances": 1, "validation_in_turn": True, "num_test": 0}
EPOCHS: dict[Scale, int] = {"quick": 1, "full": 3}
PATH = "on the way from the old network with t = 1 to the new one, each with all before it"
ITERATIONS = "the new network"


def rows(scale: Scale, data: str) -> list[Row]:
    """The parts of the new network one by one, with t = 1; then the new network with more iterations."""
    common: dict[str, Any] = {"epochs": EPOCHS[scale], "run": FOLDS}
    spread_of_votes = {name: SOFT.routing_options["em"][name] for name in ("activation", "lambda_schedule", "eps_var")}
    old: dict[str, Any] = {"routing": {"num_iterations": 1}}
    path: list[tuple[str, dict[str, Any]]] = [("old network, t = 1", old)]
    for name, part in (
        ("norms between layers", {"norm": SOFT.norm, "batch_norm": SOFT.batch_norm}),
        ("loss", {"training": {"loss": SOFT.loss}}),
        ("activation from the spread of votes", {"routing": {"num_iterations": 1, **spread_of_votes}}),
        ("small start", {"start": SOFT.start}),
        ("coordinates times 0.1", {"coordinates": SOFT.coordinates}),
    ):
        path.append((f"+ {name}", path[-1][1] | part))
    new: list[tuple[str, dict[str, Any]]] = [
        (f"new network, t = {t}", {"routing_options": {"num_iterations": t}}) for t in (1, 2, 3)
    ]
    return [
        Row(
            name=name,
            group=group,
            config=norb_run(scale, data, "matrix-capsnet-small", **common, **options),
            measure=validation_error,
        )
        for group, variants in ((ITERATIONS, new), (PATH, path))
        for name, options in variants
    ]


EXPERIMENT = Experiment(
    name="soft-start",
    title="what made matrix capsules learn",
    source="nothing published; the parts of the network that hinton2018 trains",
    data={"quick": "toys", "full": "smallnorb"},
    takes={"quick": "about 3 minutes", "full": "about 25 minutes of one core a seed"},
    rows=rows,
    remark="One training instance of every category is held out, the next one with every seed; no test image is used. "
    "The recipe itself was found in trials that had looked at test images.",
)
