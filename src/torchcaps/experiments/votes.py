"""What routing does to votes: how close they come, how fast it settles, how one-sided it gets, whether it matters."""

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchcaps.data import ImageSet, choose_some
from torchcaps.experiments.archive import all_runs
from torchcaps.experiments.digits import ROUTINGS, capsules_with, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale, test_error
from torchcaps.experiments.hinton2018 import norb_run
from torchcaps.inspection import ClassRouting, class_routing, find_routes, remaining_descent
from torchcaps.inspection.routed import with_iterations
from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.nn import EMRouting, Routing, create_routing
from torchcaps.predictor import load
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.storage import write_json
from torchcaps.viz.iterations import Iterations, iteration_curves
from torchcaps.viz.vote_histograms import class_distances

EPOCHS: Mapping[Scale, tuple[int, int]] = {"full": (2, 5), "quick": (1, 1)}  # on digits, on toys
NUM_IMAGES: Mapping[Scale, int] = {"full": 100, "quick": 10}
NUM_ITERATIONS = 20
ZOOM = 0.1  # share of the votes: the paper's fixed distance of 0.05 shows none of those on smallNORB
STUDY = "votes.json"
CLOSER, OTHERS = "distance of votes from the {}, last iteration over first, %".format, "other classes"
LARGEST, LARGEST_LONG = "mean largest coupling, %", f"mean largest coupling after {NUM_ITERATIONS} iterations, %"
SETTLED = "updates until 90 % of the objective's descent"


def study_votes(scale: Scale, name: str, folder: Path) -> dict[str, float]:
    """Route test images with the trained routing, for longer, and with other routings; draws what happens.

    Args:
        scale: of the experiment.
        name: of the network in pictures.
        folder: of its run.
    """
    model, test = load(folder).model, load_run_data(RunConfig.read(folder)).test
    assert isinstance(test, ImageSet)
    assert isinstance(model, VectorCapsNet | MatrixCapsNet)
    some = choose_some(test, NUM_IMAGES[scale], 0)
    images = model.preprocessing(some.images)
    routing = model.class_capsules.routing
    routes = [find_routes(model, image, return_trace=True) for image in images]
    as_trained = [class_routing(one) for one in routes]
    longer = [class_routing(one, with_iterations(routing, NUM_ITERATIONS)) for one in routes]
    changed = {
        kind: disagreement(as_trained, [class_routing(one, other) for one in routes])
        for kind, other in other_routings(routing).items()
    }
    for kind, share in (("full", 1.0), ("zoomed", ZOOM)):
        class_distances(as_trained[0], share=share).savefig(folder / f"distances-{kind}.png", dpi=150)
    objective = np.mean([routed.objectives for routed in longer], axis=0)
    kept = {
        "name": name,
        "num_classes": len(model.labels),
        "images": len(some),
        "updates": list(range(len(objective))),  # every trace starts with uniform couplings
        "polarisation": np.mean([polarisation(routed) for routed in longer], axis=0).tolist(),
        "objective": objective.tolist(),
        "changed": changed,
    }
    write_json(folder / STUDY, kept)
    draw(folder.parent.parent, folder.parent.name.split("-")[0], folder.name)
    found = test_error(folder) | nearness(as_trained)
    found |= {
        LARGEST: 100 * float(np.mean([polarisation(routed)[-1] for routed in as_trained])),
        LARGEST_LONG: 100 * kept["polarisation"][-1],
    }
    if (remaining := remaining_descent(objective)) is not None:
        found[SETTLED] = float(kept["updates"][int(np.argmax(remaining <= 0.1))])
    return found | {f"answers that {name} routing changes, %": 100 * share for name, share in changed.items()}


def other_routings(routing: Routing) -> dict[str, Routing]:
    """What may take the place of a routing without a change of what answers mean.

    The class of the longest pose is the answer of all routings but EM, whose activations come from costs: another
    number of iterations is all that EM can be compared with, and one iteration has uniform couplings.
    """
    if isinstance(routing, EMRouting):
        kind, other = ("EM", 2) if routing.options.get("num_iterations") == 1 else ("uniform", 1)
        return {kind: with_iterations(routing, other)}
    made = {
        name.split(",")[0]: create_routing(kind, **options)
        for name, (kind, options) in ROUTINGS.items()
        if kind != "em"
    }
    return {name: other for name, other in made.items() if type(other) is not type(routing)}


def polarisation(routed: ClassRouting) -> np.ndarray:
    """Mean largest coupling of a child at each iteration, children by their weights: (S,)."""
    return (routed.couplings.max(2) @ routed.weights) / max(float(routed.weights.sum()), 1e-30)


def nearness(routed_images: list[ClassRouting]) -> dict[str, float]:
    """How much closer the votes are to the winner and to the other classes in the last iteration than in the first."""
    shares = []
    for routed in routed_images:
        distances_SIJ = routed.distances()
        masses_SIJ, winner = routed.masses, routed.strongest[0]
        totals_SJ, mass_SJ = (distances_SIJ * masses_SIJ).sum(1), masses_SIJ.sum(1)
        others = np.arange(len(routed.labels)) != winner
        near_S = totals_SJ[:, winner] / mass_SJ[:, winner]
        far_S = totals_SJ[:, others].sum(1) / mass_SJ[:, others].sum(1)
        shares.append((near_S[-1] / near_S[0], far_S[-1] / far_S[0]))
    near, far = 100 * np.mean(shares, axis=0)
    return {CLOSER("winner"): float(near), CLOSER(OTHERS): float(far)}


def disagreement(one: list[ClassRouting], other: list[ClassRouting]) -> float:
    """Share of images that are given another class."""
    return float(np.mean([first.strongest[0] != second.strongest[0] for first, second in zip(one, other, strict=True)]))


def draw(out: Path, group: str, seed: str) -> None:
    """All routings of a group, iteration by iteration."""
    places = [place for run, place in all_runs(out, STUDY).items() if fnmatch(run, f"{group}-*/{seed}")]
    found = [json.loads((place / STUDY).read_text(encoding="utf-8")) for place in places]
    lines = [Iterations(*(kept[name] for name in ("name", "updates", "polarisation", "objective"))) for kept in found]
    title = f"{group}: the votes of a network trained with each routing, mean over {found[0]['images']} test images"
    figure = iteration_curves(lines, num_classes=found[0]["num_classes"], title=title)
    figure.savefig(out / f"{group}-iterations-{seed}.png", dpi=150)


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` names the digits and the toys, with a comma between them, or one of them."""
    digits, _, toys = (name.strip() for name in data.partition(","))
    found: list[tuple[str, str, RunConfig]] = [
        (
            "digits",
            name,
            digits_run(
                scale, digits, "capsnet-small", epochs=EPOCHS[scale][0], **capsules_with(name, reconstruct=False)
            ),
        )
        for name in ROUTINGS
    ]
    if toys:
        for num_iterations in (2, 1):
            options: dict[str, Any] = {"routing": {"num_iterations": num_iterations}, "epochs": EPOCHS[scale][1]}
            name = f"EM, t = {num_iterations}{' (uniform)' if num_iterations == 1 else ''}"
            found.append(("toys", name, norb_run(scale, toys, "matrix-capsnet-small", **options)))
    return [
        Row(name=f"{group}: {name}", config=config, group=group, measure=partial(study_votes, scale, name))
        for group, name, config in found
    ]


EXPERIMENT = Experiment(
    name="votes",
    title="what routing does to votes",
    source='G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018, figure 2 (no numbers)',
    data={"quick": "digits, toys", "full": "mnist, smallnorb"},
    takes={
        "quick": "a few minutes",
        "full": "about an hour a seed on one busy core, minutes with networks of mnist-ablation and attacks (--reuse)",
    },
    rows=rows,
    remark="Distances are weighted with couplings. `answers that X routing changes` puts another routing in the place "
    "of the trained one, on the same votes: uniform coupling tells whether routing matters at all. EM answers with "
    "costs, the others with lengths, so EM is compared with itself alone.",
)
