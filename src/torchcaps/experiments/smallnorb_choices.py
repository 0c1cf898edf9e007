"""What helps to recognise toys never seen: choices for smallNORB, made on held-out training instances."""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.harness import Experiment, Row, Scale, validation_error
from torchcaps.experiments.hinton2018 import AUGMENTATION, LOCAL_CONTRAST, NEARER, SETTINGS, norb_run

EPOCHS: dict[Scale, int] = {"quick": 1, "full": 6}
# One instance of every category is held out, another one with every seed; the test images are not looked at.
HELD_OUT = {"validation_instances": 1, "num_test": 0}


def rows(scale: Scale, data: str) -> list[Row]:
    """Every row differs from the first in one thing."""
    stronger = replace(AUGMENTATION, brightness=1.0, contrast=0.8)
    unwarped = replace(AUGMENTATION, scale=0.0, rotation=0.0, shear=0.0)
    window = {"routing": {"competition": "window"}}
    local_contrast = {**LOCAL_CONTRAST, "run": HELD_OUT | LOCAL_CONTRAST["run"]}
    lower = {"learning_rate": SETTINGS["learning_rate"] / 3}
    variants: list[tuple[str, dict[str, Any]]] = [
        ("base", {}),
        ("t = 3", {"routing": {"num_iterations": 3}}),
        ("t = 3, learning rate 0.0005", {"routing": {"num_iterations": 3}, "training": {"learning_rate": 5e-4}}),
        ("transformations start nearer", NEARER),
        ("window competition", window),
        ("window competition, transformations start nearer", window | NEARER),
        ("local contrast, window competition, transformations start nearer", window | NEARER | local_contrast),
        ("cost scale of the paper", {"routing": {"cost_scale": "paper"}}),
        ("batch norm", {"batch_norm": True}),
        ("batches of 16", {"training": {"batch_size": 16, "learning_rate": SETTINGS["learning_rate"] / 2}}),
        ("stronger brightness and contrast", {"training": {"augmentation": stronger}}),
        ("no scale, rotation and shear", {"training": {"augmentation": unwarped}}),
        (
            "mirrored pairs, no scale, rotation and shear",
            {"training": {"augmentation": replace(unwarped, mirror="stereo")}},
        ),
        ("capsule dropout 0.1", {"capsule_dropout": 0.1}),
        ("pose noise 0.1", {"pose_noise": 0.1}),
        ("weight decay 0.01", {"training": {"weight_decay": 0.01}}),
        ("weight decay 0.1", {"training": {"weight_decay": 0.1}}),
        ("no moving average", {"training": {"ema": None}}),
        ("margin from 0.2 to 0.5", {"training": {"spread_margin": (0.2, 0.5)}}),
        ("learning rate 0.001, three times as long", {"training": lower, "epochs": 3 * EPOCHS[scale]}),
    ]
    common: dict[str, Any] = {"epochs": EPOCHS[scale], "routing": {}, "run": HELD_OUT}
    return [
        Row(
            name=name,
            config=norb_run(scale, data, "matrix-capsnet-small", **(common | changes)),
            measure=validation_error,
        )
        for name, changes in variants
    ]


EXPERIMENT = Experiment(
    name="smallnorb-choices",
    title="which settings generalise to instances never seen",
    source="nothing published; choices for hinton2018",
    data={"quick": "toys", "full": "smallnorb"},
    takes={"quick": "about 3 minutes", "full": "about 3 hours a seed on one core, reckoned from seconds per epoch"},
    rows=rows,
    remark="One training instance of every category is held out, another one with every seed; no test image is used.",
)
