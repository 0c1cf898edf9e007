"""A training run from data to report, in one folder: config, environment, metrics, checkpoints, model, result."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.checks import check_choice
from torchcaps.data import DataSet, ImageSet, load_data, split_validation
from torchcaps.environment import environment
from torchcaps.models import ImageModel, create_model
from torchcaps.predictor import Predictor
from torchcaps.preprocessing import SCALINGS, Preprocessing
from torchcaps.training import Event, TrainingConfig, fit
from torchcaps.training.metrics import confusion_matrix
from torchcaps.training.processes import processes
from torchcaps.training.tracking import MetricsFile
from torchcaps.viz import training_report

CONFIG, ENVIRONMENT, RESULT, MODEL, REPORT = "config.json", "environment.json", "result.json", "model", "report.png"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    Attributes:
        data: name or path, see `torchcaps.data.load_data`.
        model: name, see `torchcaps.models.list_models`.
        model_options: arguments of the model, such as {"routing": "kmeans"}.
        image_size: (height, width) to which images are brought, None to keep theirs.
        scaling: "unit" or "standardise".
        validation: share of the training images held out for choices.
        training: how to train; a crop in its augmentation is random in training and central in evaluation.
    """

    data: str = "digits"
    model: str = "capsnet-small"
    model_options: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    scaling: str = "unit"
    validation: float = 0.1
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, SCALINGS)

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        """The configuration of a run folder."""
        path = folder / CONFIG
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} is not a run folder: no readable {CONFIG} ({error})") from error
        size = values["image_size"] and tuple(values["image_size"])
        return cls(**(values | {"image_size": size, "training": TrainingConfig.from_dict(values["training"])}))


def run(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None = None) -> dict[str, Any]:
    """Train, choose on validation, test once, report. A run that was stopped in `folder` goes on where it stood.

    Returns:
        What result.json holds: test accuracy, validation accuracy, seconds, parameters.
    """
    is_main = processes().is_main_process
    if (folder / CONFIG).exists() and RunConfig.read(folder) != config:
        raise ValueError(f"{folder} holds another run; resume it with `--resume {folder}` or choose another folder")
    data = load_data(config.data)
    train, validation = split_validation(data.train, config.validation, config.training.seed)
    torch.manual_seed(config.training.seed)
    model = new_model(config, data)
    if is_main:
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
    progress = fit(model, train, validation, config.training, folder=folder, on_event=on_event)
    result: dict[str, Any] = {
        "validation_accuracy": progress.best_accuracy,
        "best_epoch": progress.best_epoch + 1,
        "seconds": round(progress.seconds, 1),
        "steps": progress.step,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seed": config.training.seed,
    }
    if is_main:
        predictor = Predictor(model)
        if data.test is not None:
            probabilities = predictor.predict_proba(data.test.images)
            result |= {"accuracy": accuracy(probabilities, data.test.labels), "test_images": len(data.test)}
            draw_report(folder, predictor, data.test, probabilities, result)
        model.card = {"title": folder.name, "data": f"{data.name}: {data.origin}", "terms of the data": data.terms}
        model.card |= {name: result[name] for name in ("accuracy", "validation_accuracy", "seed") if name in result}
        model.save_pretrained(folder / MODEL)
        write_json(folder / RESULT, result)
    return result


def new_model(config: RunConfig, data: DataSet) -> ImageModel:
    """An untrained model for the data, with its preprocessing and labels."""
    images = data.train.images
    channels = images.shape[3] if images.ndim == 4 else 1
    preprocessing = Preprocessing(
        image_size=config.image_size or images.shape[1:3],
        channels=channels,
        scaling=config.scaling,
        crop=config.training.augmentation.crop,
    )
    model = create_model(
        config.model,
        image_shape=preprocessing.output_shape,
        num_classes=len(data.class_names),
        multi_label=data.train.is_multi_label,
        **config.model_options,
    )
    model.preprocessing, model.labels = preprocessing, data.class_names
    return model


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose class is right (multi-label: all classes right)."""
    if labels.ndim == 2:
        return float(((probabilities >= 0.5) == labels).all(1).mean())
    return float((probabilities.argmax(1) == labels).mean())


def draw_report(
    folder: Path, predictor: Predictor, test: ImageSet, probabilities: np.ndarray, result: dict[str, Any]
) -> None:
    """Write report.png: curves, confusion, worst mistakes, reconstructions."""
    names, classes = predictor.labels, np.arange(test.num_classes)
    if test.is_multi_label:
        truth, found = test.labels, probabilities >= 0.5
    else:
        truth, found = test.labels[:, None] == classes, probabilities.argmax(1)[:, None] == classes
    confidence = np.where(found & ~truth, probabilities, 0).max(1)
    wrong = np.flatnonzero((found != truth).any(1))
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")][:10]

    def listed(flags: np.ndarray) -> str:
        return " + ".join(names[index] for index in np.flatnonzero(flags)) or "nothing"

    mistakes = [
        (test.images[i], f"{listed(truth[i])} taken for\n{listed(found[i])} ({confidence[i]:.2f})") for i in wrong
    ]
    output = predictor.run(test.images[:10])
    pairs = []
    if output.reconstruction is not None:
        inputs = predictor.model.preprocessing(test.images[:10])
        pairs = list(zip(inputs.numpy(), output.reconstruction.numpy(), strict=True))
    title = f"{predictor.model.name}: {100 * result['accuracy']:.2f} % of {len(test):,} test images right"
    confusion = confusion_matrix(torch.from_numpy(found), torch.from_numpy(truth)).numpy()
    history = MetricsFile(folder).read()
    training_report(history, confusion, names, mistakes, pairs, title=title).savefig(folder / REPORT, dpi=120)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=2) + "\n")
    os.replace(temporary, path)
