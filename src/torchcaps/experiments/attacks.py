"""Attacks with the gradient on capsules and CNNs: white box, towards every class, and from one network to another."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torchcaps.attacks import METHODS, Outcome, gradient_statistics, sweep, transfer
from torchcaps.data import ImageSet, choose_some
from torchcaps.environment import environment
from torchcaps.experiments.archive import find_run
from torchcaps.experiments.digits import NETWORKS, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale, row_folder, test_error
from torchcaps.experiments.hinton2018 import CNN_SETTINGS, norb_run
from torchcaps.predictor import load
from torchcaps.runs import CONFIG, ENVIRONMENT, MODEL, RESULT, RunConfig, load_run_data
from torchcaps.storage import write_json
from torchcaps.training import Event
from torchcaps.viz.attack_curves import AttackCurve, attack_curves

# The grey toys are lost to changes that digits do not notice. Of all epsilons the table shows two.
EPSILONS = {"digits": (0.0, 0.05, 0.1, 0.2, 0.3), "toys": (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)}
IN_TABLE = {"digits": (0.1, 0.2), "toys": (0.01, 0.2)}
# Test images that are attacked: of digits, of toys; and fewer towards every class.
NUM_IMAGES: Mapping[Scale, tuple[int, int, int]] = {"full": (300, 150, 50), "quick": (40, 20, 10)}
EPOCHS: Mapping[Scale, tuple[int, int]] = {"full": (2, 5), "quick": (1, 1)}  # on digits, on toys
ATTACK = "attack.json"
SOURCE = "CNN, small"
ZERO_OWN, ZERO_CROSS = (
    "gradients of the training loss that are zero, %",
    "gradients of the cross-entropy that are zero, %",
)
ORDERS = "gradient of the training loss below the CNN's, orders of magnitude"
# A picture has room for five.
DRAWN = {
    "digits": (SOURCE, "no routing", "uniform", "dynamic, r = 3", "EM, t = 3"),
    "toys": (SOURCE, "CNN, 4.2 M", "no routing", "EM, t = 2", "EM that starts soft, t = 3"),
}


def under(method: str, epsilon: float, *, where: str = "") -> str:
    """The name of the error under an attack."""
    return f"error under {method}{where}, epsilon {epsilon:g}, %"


def attack_run(scale: Scale, num_images: int, folder: Path) -> dict[str, float]:
    """Attack a trained network in every way; keeps all outcomes in attack.json and redraws the curves of the table."""
    model, test = load(folder).model, load_run_data(RunConfig.read(folder)).test
    assert isinstance(test, ImageSet)
    some, few = choose_some(test, num_images, 0), choose_some(test, NUM_IMAGES[scale][2], 0)
    group = folder.parent.name.split("-")[0]
    epsilons = EPSILONS[group] if scale == "full" else (0.0, *IN_TABLE[group])
    source = folder.parent.parent / row_folder(f"{group}: {SOURCE}") / folder.name
    if not (source / MODEL).is_dir():
        raise ValueError(
            f"{folder} is attacked from {source}, which has not run; run the row '{group}: {SOURCE}' first"
        )
    source_model = load(source).model
    kept: dict[str, Any] = {"images": len(some), "white_box": {}, "black_box": {}, "gradients": {}}
    for method in METHODS:
        kept["white_box"][method] = sweep(model, some.images, some.labels, epsilons=epsilons, method=method)
    for method in ("fgsm", "bim"):
        (shown,) = transfer(
            source_model, {"": model}, some.images, some.labels, epsilons=epsilons, method=method
        ).values()
        kept["black_box"][method] = shown
    kept["targeted_images"] = len(few)
    kept["targeted"] = sweep(model, few.images, few.labels, epsilons=IN_TABLE[group], method="bim", targeted=True)
    for loss in ("own", "cross_entropy"):
        for name, attacked in (("this", model), ("source", source_model)):
            statistics = gradient_statistics(attacked, some.images, some.labels, loss=loss)
            kept["gradients"][f"{name}, {loss}"] = statistics._asdict()
    write_json(folder / ATTACK, kept)
    draw(folder.parent.parent, group, folder.name)
    return test_error(folder) | figures(kept, IN_TABLE[group], is_source=source == folder)


def figures(kept: Mapping[str, Any], epsilons: tuple[float, ...], *, is_source: bool) -> dict[str, float]:
    """What the table shows of all outcomes."""
    found = {}
    for method, outcomes in kept["white_box"].items():
        found |= {
            under(method, outcome.epsilon): _error(outcome) for outcome in outcomes if outcome.epsilon in epsilons
        }
    for outcome in kept["targeted"]:
        found[f"success of bim towards each class, epsilon {outcome.epsilon:g}, %"] = 100 * outcome.success
    if not is_source:
        for method, outcomes in kept["black_box"].items():
            where = " made on the small CNN"
            found |= {
                under(method, outcome.epsilon, where=where): _error(outcome)
                for outcome in outcomes
                if outcome.epsilon in epsilons
            }
    gradients = kept["gradients"]
    found[ZERO_OWN] = 100 * gradients["this, own"]["zero_share"]
    found[ZERO_CROSS] = 100 * gradients["this, cross_entropy"]["zero_share"]
    mine, theirs = (gradients[f"{name}, own"]["magnitude"] for name in ("this", "source"))
    if mine > 0 and theirs > 0 and not is_source:
        found[ORDERS] = math.log10(theirs / mine)
    return found


def _error(outcome: Outcome) -> float:
    return 100 * (1 - outcome.accuracy)


def draw(out: Path, group: str, seed: str) -> None:
    """A picture for each attack, of the networks of a group that are finished."""
    found = {}
    for name in DRAWN[group]:
        place = find_run(out, row_folder(f"{group}: {name}"), seed, ATTACK)
        if place is not None:
            found[name] = json.loads((place / ATTACK).read_text(encoding="utf-8"))
    kinds = [(method, "white_box", f"{method.upper()} with the network's own gradient") for method in METHODS]
    kinds += [(method, "black_box", f"{method.upper()} with the small CNN's gradient") for method in ("fgsm", "bim")]
    for method, kind, title in kinds:
        curves = [
            AttackCurve(
                name,
                [epsilon for epsilon, _, _ in kept[kind][method]],
                [accuracy for _, accuracy, _ in kept[kind][method]],
                kept["images"],
            )
            for name, kept in found.items()
        ]
        if curves:
            path = out / f"{group}-{kind.replace('_', '-')}-{method}-{seed}.png"
            attack_curves(curves, title=f"{group}: {title}").savefig(path, dpi=150)


def use_shipped(
    name: str, config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None = None
) -> dict[str, Any]:
    """A run that takes a shipped model instead of training one."""
    predictor, test = load(name), load_run_data(config).test
    assert test is not None
    result = predictor.model.task.score(predictor.predict(test.inputs), test.labels)
    result |= {"num_test": len(test), "seconds": 0.0, "shipped": name}
    write_json(folder / CONFIG, asdict(config))
    write_json(folder / ENVIRONMENT, environment())
    predictor.model.save_pretrained(folder / MODEL)
    write_json(folder / RESULT, result)
    return result


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` names the digits and the toys, with a comma between them, or one of them; of each the source first."""
    digits, _, toys = (name.strip() for name in data.partition(","))
    return [*_digits(scale, digits), *(_toys(scale, toys) if toys else [])]


def _digits(scale: Scale, data: str) -> list[Row]:
    group, epochs = "digits", EPOCHS[scale][0]
    made = [
        _row(scale, group, name, digits_run(scale, data, model, epochs=epochs, **options), NUM_IMAGES[scale][0])
        for name, (model, options) in NETWORKS.items()
    ]
    if scale == "full":
        shipped = digits_run(scale, data, "capsnet-small", epochs=16)
        made.append(
            _row(
                *(scale, group, "capsnet-small-mnist, as it ships", shipped, NUM_IMAGES[scale][0]),
                run=partial(use_shipped, "capsnet-small-mnist"),
            )
        )
    return made


def _toys(scale: Scale, data: str) -> list[Row]:
    models: list[tuple[str, str, dict[str, Any]]] = [
        (SOURCE, "cnn-small", {"training": CNN_SETTINGS}),
        ("no routing", "matrix-no-routing", {"training": CNN_SETTINGS}),
        ("EM, t = 2", "matrix-capsnet-small", {"routing": {}}),
        ("EM, t = 1 (uniform)", "matrix-capsnet-small", {"routing": {"num_iterations": 1}}),
        ("EM that starts soft, t = 3", "matrix-capsnet-small", {"routing_options": {"num_iterations": 3}}),
        ("EM that starts soft, t = 1", "matrix-capsnet-small", {"routing_options": {"num_iterations": 1}}),
        ("CNN, 4.2 M", "cnn-baseline", {"training": CNN_SETTINGS}),
    ]
    return [
        _row(
            *(scale, "toys", name, norb_run(scale, data, model, epochs=EPOCHS[scale][1], **options)),
            NUM_IMAGES[scale][1],
            published={ORDERS: 2.0} if name == "EM, t = 2" else None,
        )
        for name, model, options in models
    ]


def _row(
    scale: Scale,
    group: str,
    name: str,
    config: RunConfig,
    num_images: int,
    published: dict[str, float] | None = None,
    **more: Any,
) -> Row:
    return Row(
        name=f"{group}: {name}",
        config=config,
        published=published or {},
        where="appendix on attacks",
        group=group,
        measure=partial(attack_run, scale, num_images),
        **more,
    )


EXPERIMENT = Experiment(
    name="attacks",
    title="what attacks with the gradient do to capsules and to CNNs",
    source='G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018',
    data={"quick": "digits, toys", "full": "mnist, smallnorb"},
    takes={
        "quick": "a few minutes",
        "full": "about 2 hours a seed on one busy core, half of them with the networks of mnist-ablation (--reuse)",
    },
    rows=rows,
    remark="Epsilon is the largest change of a raw pixel (0 to 1), with the gradient of the cross-entropy through the "
    "preprocessing. The paper (smallNORB): at epsilon 0.2 the CNN is well below chance, capsules never below 20 % "
    "right; from one CNN to capsules and to another CNN it saw no clear difference.",
)
