"""Which parts of a capsule network make its poses say how a digit looks."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data import ImageSet
from torchcaps.environment import environment
from torchcaps.experiments.digits import digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale
from torchcaps.experiments.pose_networks import CodeNetwork, PoseNetwork
from torchcaps.inspection import class_means, class_principal_pictures, picture_errors, poses_of
from torchcaps.runs import CONFIG, ENVIRONMENT, RESULT, RunConfig, load_run_data, training_parts
from torchcaps.schedules import linear
from torchcaps.storage import lock_folder, write_json
from torchcaps.training import Event
from torchcaps.training.engine import Trainer
from torchcaps.training.objective import make_objective

ERROR, WRONG, STRAIGHT = "error of reconstruction", "validation error, %", "mean of unit poses, longest class"
NUM_DIGITS, HELD_OUT = 12_000, 1 / 6
EPOCHS: Mapping[Scale, int] = {"full": 3, "quick": 1}
WEIGHT = 0.02  # four times the model's own: so few steps would else hardly reach the poses
BATCH_SIZE = 250

Runner = Callable[[RunConfig, Path, Callable[[Event], None] | None], Any]


def measures(folder: Path) -> dict[str, float]:
    """What a run found on held-out training digits."""
    found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return {name: found[name] for name in (ERROR, WRONG, STRAIGHT) if name in found}


def rows(scale: Scale, data: str) -> list[Row]:
    """The choice, then each part changed alone; lower bounds first."""
    groups: dict[str, dict[str, dict[str, Any]]] = {
        "the choice": {"CapsNet-Small": {}},
        "transformations of the classes": {
            "factorised through 8 entries": {"sharing": "factorised"},
            "factorised through 32 entries": {"inner_size": 32},
            "factorised through 64 entries": {"inner_size": 64},
            "shared by all children": {"sharing": "shared"},
        },
        "children of an image": {
            "288 of 4 entries": {"num_types": 32, "pose_size": 4},
            "72 of 16 entries": {"num_types": 8, "pose_size": 16},
        },
        "decoder": {
            "128 and 256 hidden units": {"decoder_hidden": (128, 256)},
            "512 and 1024 hidden units": {"decoder_hidden": (512, 1024)},
            "poses as they are": {"pose_scale": 1.0},
            "poses times 8": {"pose_scale": 8.0},
            "poses times 256": {"pose_scale": 256.0},
            "drawn from the winner in training": {"draws_winner": True},
        },
        "weight of the reconstruction": {
            "0.0005, as in the paper": {"weight": 0.0005},
            "0.005": {"weight": 0.005},
            "0.1": {"weight": 0.1},
            "from 0.0005 to 0.02": {"first_weight": 0.0005},
            "from 0.1 to 0.02": {"first_weight": 0.1},
        },
        "squash": {
            "squash_k = 0.25": {"routing_options": {"squash_k": 0.25}},
            "squash_k = 4": {"routing_options": {"squash_k": 4.0}},
        },
        "routing": {
            "uniform": {"routing": "uniform"},
            "dynamic, r = 2": {"routing_options": {"num_iterations": 2}},
            "dynamic, r = 5": {"routing_options": {"num_iterations": 5}},
            "K-Means, r = 2": {"routing": "kmeans", "routing_options": {"num_iterations": 2}},
            "entropy, r = 3": {"routing": "entropy"},
            "EM, t = 3": {"routing": "em"},
        },
        "all former choices at once": {
            "factorised, 128 and 256, poses as they are, 0.0005": {
                "sharing": "factorised",
                "decoder_hidden": (128, 256),
                "pose_scale": 1.0,
                "weight": 0.0005,
            }
        },
    }
    bounds = {"class means": means, "15 principal directions of each class": principal}
    found = [_row(scale, data, name, {"bound": name}, "lower bounds", run) for name, run in bounds.items()]
    found.append(_row(scale, data, "autoencoder, code of 16, class given", {"code": 16}, "lower bounds", train))
    for group, variants in groups.items():
        found += [_row(scale, data, name, options, group, train) for name, options in variants.items()]
    return found


def _row(scale: Scale, data: str, name: str, options: dict[str, Any], group: str, run: Runner) -> Row:
    size = {"num_train": NUM_DIGITS} if scale == "full" else {"num_train": 300}
    options = dict(options)
    training = {"reconstruction_weight": options.pop("weight", WEIGHT)}
    config = digits_run(
        *(scale, data, "pose-network"),
        epochs=EPOCHS[scale],
        training=training,
        run={**size, "validation": HELD_OUT, "num_test": 0},
        **options,
    )
    return Row(name=name, config=config, group=group, measure=measures, run=run)


def parts(config: RunConfig) -> tuple[ImageSet, ImageSet]:
    """Digits to learn from and held-out ones, both of the training part."""
    train, validation = training_parts(config, load_run_data(config))
    assert isinstance(train, ImageSet)
    assert isinstance(validation, ImageSet)
    return train, validation


def train(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None) -> None:
    """Train a network of parts and measure it on held-out digits, the classes of the digits not given."""
    with lock_folder(folder):
        learned, held_out = parts(config)
        options = dict(config.model_options)
        weight, first = config.training.reconstruction_weight, options.pop("first_weight", None)
        assert weight is not None
        torch.manual_seed(config.training.seed)
        kind = CodeNetwork if "code" in options else PoseNetwork
        shape = (1, *learned.images.shape[1:3])
        model = kind(image_shape=shape, num_classes=len(learned.class_names), **options)
        _start(config, folder)
        trainer = Trainer(model, learned, None, config.training, folder=folder, on_event=on_event)
        classify = make_objective(model, config.training)

        def objective(output, images, targets, progress):
            share = weight if first is None else linear(progress, 1.0, start=first, end=weight)
            error = (output.reconstruction - images).square().flatten(1).sum(1)
            return classify(output._replace(reconstruction=None), images, targets, progress) + share * error

        trainer.objective = objective
        progress = trainer.run()
        numbers = {name: parameter.numel() for name, parameter in model.named_parameters()}
        result = {
            "seconds": round(progress.seconds, 1),
            "parameters": sum(size for name, size in numbers.items() if not name.startswith("decoder.")),
            "parameters of the decoder": sum(size for name, size in numbers.items() if name.startswith("decoder.")),
        }
        write_json(folder / RESULT, result | evaluate(model, held_out))


@torch.inference_mode()
def evaluate(model: PoseNetwork | CodeNetwork, held_out: ImageSet) -> dict[str, float]:
    """Error of the pictures, of the answers, and how alike the directions of a class's poses are."""
    model.eval()
    errors, right, poses = [], [], []
    for begin in range(0, len(held_out), BATCH_SIZE):
        part = slice(begin, begin + BATCH_SIZE)
        images, classes = model.preprocessing(held_out.images[part]), torch.from_numpy(held_out.labels[part])
        output = model(images, classes if model.is_told_class else None)
        errors.append((output.reconstruction - images).square().flatten(1).sum(1))
        right.append(output.scores.argmax(1) == classes)
        poses.append(poses_of(model, images, classes))
    found = {ERROR: float(torch.cat(errors).mean())}
    if model.is_told_class:
        return found
    unit, labels = torch.nn.functional.normalize(torch.cat(poses), dim=1), torch.from_numpy(held_out.labels)
    means = [unit[labels == index].mean(0).norm() for index in labels.unique()]
    return found | {WRONG: 100 * float(1 - torch.cat(right).float().mean()), STRAIGHT: float(max(means))}


def means(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None) -> None:
    """What a decoder that knows the class alone could draw."""
    _bound(config, folder, class_means)


def principal(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None) -> None:
    """What a linear decoder could draw from 15 numbers and the class."""
    _bound(config, folder, partial(class_principal_pictures, num_directions=15))


def _bound(config: RunConfig, folder: Path, draw: Callable[..., np.ndarray]) -> None:
    with lock_folder(folder):
        learned, held_out = parts(config)
        _start(config, folder)
        fitted, told = (part.images.astype(np.float64) / 255 for part in (learned, held_out))
        drawn = draw(fitted, learned.labels, told, held_out.labels)
        write_json(folder / RESULT, {ERROR: float(picture_errors(drawn, told).mean())})


def _start(config: RunConfig, folder: Path) -> None:
    write_json(folder / CONFIG, asdict(config))
    write_json(folder / ENVIRONMENT, environment())


EXPERIMENT = Experiment(
    name="pose-parts",
    title="what makes the pose of a class say how a digit looks",
    source="none: these are choices",
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "a few minutes", "full": "about 25 minutes a seed on one core"},
    rows=rows,
    remark="Trained on 10,000 digits of the training part, moved by up to 2 pixels, 3 epochs; measured on 2,000 others "
    "of the training part. The error of reconstruction is the squared difference, summed over the pixels of a digit, "
    "of what is drawn from the winner's pose. Every row differs from the choice in what it names alone; the weight "
    "of the reconstruction is 0.02. Parameters are those without the decoder.",
)
