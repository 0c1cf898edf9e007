"""Table 1 of the paper on matrix capsules: smallNORB, baselines, and what each part of the network is good for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchcaps.data import Augmentation
from torchcaps.experiments.harness import (
    TEST_ERROR,
    Experiment,
    Row,
    Scale,
    over_crops,
    test_error_over_crops,
)
from torchcaps.runs import RunConfig
from torchcaps.schedules import routing_lambda
from torchcaps.training import TrainingConfig

NUM_CROPS = 9
# 48 x 48, each pair of pictures to zero mean and unit variance, random crops of 32 x 32, brightness and contrast; ours
# beyond the paper: turned, sheared and scaled a little, since what is missing is toys of other shapes.
AUGMENTATION = Augmentation(crop=(32, 32), brightness=0.5, contrast=0.5, scale=0.15, rotation=10.0, shear=0.1)
SETTINGS = {"learning_rate": 3e-3, "ema": 0.999, "weight_decay": 1e-3, "batch_size": 64, "clip_norm": 5.0}
CNN_SETTINGS = {"learning_rate": 1e-3}
# The paper's choice is t = 3. Here t = 2 learns from the first steps; with t = 3 the gradient of a new network is eight
# times as large, and after 150 steps training accuracy is 33 %, when with t = 2 it is 72 % (seed 0).
ROUTING = {"num_iterations": 2, "competition": "global"}
# What the folds of soft-start favour for the network that starts soft.
SOFT_ITERATIONS = {"num_iterations": 3}
# Identity and a noise of 0.03 instead of 0.1: parents that see nearly the same votes are told apart step by step.
NEARER = {"weight_std": 0.03}
# Pixels as they contrast with their neighbours: edges count, not how bright a toy is here or there. The light of the
# whole picture then says nothing, and is not changed in training.
LOCAL_CONTRAST: Mapping[str, Any] = {
    "run": {"scaling": "local_contrast"},
    "training": {"augmentation": replace(AUGMENTATION, brightness=0.0, contrast=0.0)},
}
# Epochs of the small network and its baselines, of the large network, and of every row of the ablation.
EPOCHS: Mapping[Scale, tuple[int, int, int]] = {"full": (36, 28, 5), "quick": (2, 1, 1)}
QUICK_SIZE = {"num_train": 1600, "num_test": 400}
QUICK_SETTINGS = {"batch_size": 16}  # as many steps as a short run can have


def norb_run(
    scale: Scale,
    data: str,
    model: str,
    *,
    epochs: int,
    routing: Mapping[str, Any] | str | None = None,
    training: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunConfig:
    """A run in the pipeline of smallNORB, on all training instances unless `run` says otherwise.

    Args:
        scale: "quick" takes few pairs of pictures.
        data: name or path.
        model: name of the model.
        epochs: how long to train.
        routing: options of the network of the paper that differ from ROUTING; for other models a name, or None.
        training: settings that differ from SETTINGS.
        run: more of the RunConfig.
        **options: of the model.
    """
    if isinstance(routing, str):
        options["routing"] = routing
    elif routing is not None:
        options |= {"variant": "paper", "routing_options": ROUTING | dict(routing)}
    quick_settings = QUICK_SETTINGS if scale == "quick" else {}
    settings: dict[str, Any] = {"augmentation": AUGMENTATION, **SETTINGS, **quick_settings, **(training or {})}
    quick_size = QUICK_SIZE if scale == "quick" else {}
    more: dict[str, Any] = {"validation": 0.0, "scaling": "standardise", **quick_size, **(run or {})}
    return RunConfig(
        data=data,
        model=model,
        model_options=options,
        image_size=(48, 48),
        training=TrainingConfig(epochs=epochs, **settings),
        **more,
    )


def rows(scale: Scale, data: str) -> list[Row]:
    """Headline, baselines in the same pipeline, ablation with equal budgets."""
    return [*_networks(scale, data), *_baselines(scale, data), *_ablation(scale, data)]


def _networks(scale: Scale, data: str) -> list[Row]:
    small_epochs, large_epochs, _ = EPOCHS[scale]
    window = {"competition": "window"}
    common: dict[str, Any] = {
        "group": "networks",
        "where": "text on experiments",
        "measure": test_error_over_crops(NUM_CROPS),
    }
    return [
        Row(
            name="MatrixCapsNet small, soft start",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=small_epochs, routing_options=SOFT_ITERATIONS),
            published={TEST_ERROR: 2.2},
            **common,
        ),
        Row(
            name="MatrixCapsNet small, soft start, t = 1",
            config=norb_run(
                scale, data, "matrix-capsnet-small", epochs=small_epochs, routing_options={"num_iterations": 1}
            ),
            **common,
        ),
        Row(
            name="MatrixCapsNet small, 68 K",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=small_epochs, routing={}),
            published={TEST_ERROR: 2.2},
            **common,
        ),
        Row(
            name="MatrixCapsNet small, transformations start nearer",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=small_epochs, routing={}, **NEARER),
            **common,
        ),
        Row(
            name="MatrixCapsNet small, window competition",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=small_epochs, routing=window),
            **common,
        ),
        Row(
            name="MatrixCapsNet small, window competition, twice as long",
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=2 * small_epochs, routing=window),
            **common,
        ),
        Row(
            name="MatrixCapsNet small, local contrast",
            config=norb_run(
                scale, data, "matrix-capsnet-small", epochs=small_epochs, routing=window, **NEARER, **LOCAL_CONTRAST
            ),
            **common,
        ),
        Row(
            name="MatrixCapsNet, 310 K",
            config=norb_run(scale, data, "matrix-capsnet", epochs=large_epochs, routing={}),
            published={TEST_ERROR: 1.8, over_crops(NUM_CROPS): 1.4},
            **common,
        ),
    ]


def _baselines(scale: Scale, data: str) -> list[Row]:
    epochs = EPOCHS[scale][0]
    models = [
        ("CNN, 4.2 M", "cnn-baseline", {"training": CNN_SETTINGS}, 5.2),
        ("CNN, small", "cnn-small", {"training": CNN_SETTINGS}, None),
        ("small, no routing", "matrix-no-routing", {"training": CNN_SETTINGS}, None),
        ("small, EM with t = 1", "matrix-capsnet-small", {"routing": {"num_iterations": 1}}, None),
    ]
    return [
        Row(
            name=name,
            config=norb_run(scale, data, model, epochs=epochs, **options),
            published={} if published is None else {TEST_ERROR: published},
            where="text on experiments",
            group="baselines",
        )
        for name, model, options, published in models
    ]


def _ablation(scale: Scale, data: str) -> list[Row]:
    """Every row differs from the first in one thing."""
    epochs = EPOCHS[scale][2]
    constant = routing_lambda(ROUTING["num_iterations"] - 1)
    variants: list[tuple[str, dict[str, Any], float | None]] = [
        ("base: t = 2, global, mass, coordinates, matrices, spread, mdl", {}, 2.2),
        ("t = 1", {"routing": {"num_iterations": 1}}, 9.7),
        ("t = 3", {"routing": {"num_iterations": 3}}, 1.8),
        ("t = 5", {"routing": {"num_iterations": 5}}, 3.9),
        ("window competition", {"routing": {"competition": "window"}}, None),
        ("cost scale of the paper", {"routing": {"cost_scale": "paper"}}, None),
        ("no coordinates", {"coordinates": False}, 2.6),
        ("vector poses", {"pose": "vector"}, 2.9),
        ("vector poses, no coordinates", {"pose": "vector", "coordinates": False}, 3.2),
        ("margin loss", {"training": {"loss": "margin"}}, 3.2),
        ("cross-entropy", {"training": {"loss": "cross_entropy"}}, 5.8),
        ("mixing activation", {"routing": {"activation": "mixing"}}, 4.5),
        ("entropy activation", {"routing": {"activation": "entropy"}}, None),
        ("constant lambda", {"routing": {"lambda_schedule": constant}}, None),
        ("batch norm", {"batch_norm": True}, None),
    ]
    return [
        Row(
            name=name,
            config=norb_run(scale, data, "matrix-capsnet-small", epochs=epochs, **({"routing": {}} | changes)),
            published={} if published is None else {TEST_ERROR: published},
            where="table 1",
            group=f"ablation of the small network, {epochs} epoch{'s' if epochs > 1 else ''} each",
        )
        for name, changes, published in variants
    ]


EXPERIMENT = Experiment(
    name="hinton2018",
    title="matrix capsules with EM routing on smallNORB",
    source='G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018',
    data={"quick": "toys", "full": "smallnorb"},
    takes={"quick": "about 5 minutes", "full": "about 10 hours of one core a seed"},
    rows=rows,
    remark="Trained on all training instances, last weights, tested once. The paper's table 1 is about the large "
    "network trained to the end, with t = 3 where it says nothing else.",
)
