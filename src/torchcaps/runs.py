"""A training run from data to report, in one folder: config, environment, metrics, checkpoints, model, result."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.checks import check_choice, check_count
from torchcaps.data import (
    DataSet,
    ImageSet,
    LabelledSet,
    TextSet,
    choose_some,
    load_data,
    split_validation,
    validation_by_instance,
)
from torchcaps.data.load import is_image_folder
from torchcaps.data.text import TextOptions
from torchcaps.environment import environment
from torchcaps.files import lock_folder, sync, temporary_path, whole_file, write_json, writing
from torchcaps.inputs.images import SCALINGS, Preprocessing
from torchcaps.losses import reconstruction_loss
from torchcaps.models import Model, create_model
from torchcaps.models.registry import MODELS
from torchcaps.predictor import Predictor, new_predictor
from torchcaps.training import Event, TrainingConfig
from torchcaps.training.engine import Trainer
from torchcaps.training.metrics import choose_threshold, confusion_matrix, multi_label_scores
from torchcaps.training.processes import processes
from torchcaps.training.text import new_text_model
from torchcaps.training.tracking import MetricsFile
from torchcaps.viz import training_report
from torchcaps.votes.sharing import read_options

CONFIG, ENVIRONMENT, RESULT, MODEL, REPORT = "config.json", "environment.json", "result.json", "model", "report.png"
MISTAKES = "mistakes.tsv"
FROM_DATA = {"image_shape", "num_classes", "num_tokens", "multi_label"}
DEFAULT_MODELS = {"image": "capsnet-small", "text": "text-capsule-a"}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    Attributes:
        data: name or path, see `torchcaps.data.load_data`.
        model: name, see `torchcaps.models.list_models`; None takes capsnet-small for images, text-capsule-a for texts.
        model_options: arguments of the model, such as {"routing": "kmeans"}.
        image_size: (height, width) to which images are brought, None to keep theirs.
        scaling: "unit", "standardise", "standardise_crop" or "local_contrast", see Preprocessing.
        text: how texts are read and encoded.
        folds: of data without a test part, the training examples are cut into this many parts, the same in every run,
            of which the seed chooses one for the test; 0 leaves them without.
        num_train, num_test: use at most this many training (validation included) and test examples, None for all;
            with num_test 0 the run is not tested.
        validation: share of the training data held out for choices; with 0 the last weights are taken.
        validation_instances: hold out this many instances of each class instead of a share, so that choices are made
            on objects that training never sees; for sets that know the instance of each image, such as smallNORB.
        validation_in_turn: seeds 0, 1, ... hold out one instance after the other, each once in a round; otherwise the
            seed draws them.
        training: how to train; a crop in its augmentation is random in training and central in evaluation.
    """

    data: str = "digits"
    model: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    scaling: str = "unit"
    text: TextOptions = field(default_factory=TextOptions)
    folds: int = 0
    num_train: int | None = None
    num_test: int | None = None
    validation: float = 0.1
    validation_instances: int = 0
    validation_in_turn: bool = False
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, SCALINGS)
        check_count("validation_instances", self.validation_instances, least=0)
        check_count("folds", self.folds, least=0)
        if self.num_train is not None:
            check_count("num_train", self.num_train)
        if self.num_test is not None:
            check_count("num_test", self.num_test, least=0)
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be a share in [0, 1), got {self.validation}")
        # A run that is read again must equal the one that was written, and JSON knows no tuples.
        named = MODELS[self.model].named_options if self.model in MODELS else {}
        options = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in {**named, **self.model_options}.items()
        }
        object.__setattr__(self, "model_options", options)

    @classmethod
    def read(cls, folder: Path) -> "RunConfig":
        """The configuration of a run folder."""
        path = folder / CONFIG
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{folder} is not a run folder: no readable {CONFIG} ({error})") from error
        try:
            size = values["image_size"] and tuple(values["image_size"])
            kind = MODELS.get(values["model"])
            old = {} if kind is None else {name: kind.old_options[name] for name in kind.named_options}
            parts = {
                "model_options": {**old, **read_options(values["model_options"])},
                "image_size": size,
                "text": TextOptions(**values.get("text", {})),
                "training": TrainingConfig.from_dict(values["training"]),
            }
            return cls(**(values | parts))
        except Exception as error:  # wrong values make constructors raise nearly anything
            raise ValueError(f"{path} does not describe a run of this version: {error}") from error


def run(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None = None) -> dict[str, Any]:
    """Train, choose on validation, test once, report. A run that was stopped in `folder` goes on where it stood.

    Returns:
        What result.json holds: test accuracy, validation accuracy (where there are such data), seconds, parameters.
    """
    is_main = processes().is_main_process
    with lock_folder(folder) if is_main else nullcontext():  # from the first file to the last
        if (folder / CONFIG).exists() and RunConfig.read(folder) != config:
            raise ValueError(f"{folder} holds another run; resume it with `--resume {folder}` or choose another folder")
        return _run(config, folder, on_event, is_main)


def _run(config: RunConfig, folder: Path, on_event: Callable[[Event], None] | None, is_main: bool) -> dict[str, Any]:
    data = load_run_data(config)
    train, validation = training_parts(config, data)
    if validation is None and (config.training.early_stopping is not None or config.training.schedule == "plateau"):
        raise ValueError("early stopping and plateaus need validation data; give a validation above 0")
    torch.manual_seed(config.training.seed)
    model = new_model(config, data)
    if is_main:
        write_json(folder / CONFIG, asdict(config))
        write_json(folder / ENVIRONMENT, environment())
    progress = Trainer(model, train, validation, config.training, folder=folder, on_event=on_event).run()
    result: dict[str, Any] = {}
    if validation is not None:
        result |= {"validation_accuracy": progress.best_accuracy, "best_epoch": progress.best_epoch + 1}
    result |= {
        "seconds": round(progress.seconds, 1),
        "steps": progress.step,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seed": config.training.seed,
        "kind": model.kind,
    }
    if is_main:
        predictor = new_predictor(model)
        model.at_least_one = train.is_multi_label and bool(train.labels.any(1).all())
        if model.multi_label and validation is not None:
            held_out = torch.from_numpy(predictor.predict_proba(validation.inputs))
            model.threshold = result["threshold"] = choose_threshold(held_out, torch.from_numpy(validation.labels))
            result["validation_accuracy"] = scores(model.decide(held_out.numpy()), validation.labels)["accuracy"]
        if data.test is not None:
            probabilities = predictor.predict_proba(data.test.inputs)
            result |= scores(model.decide(probabilities), data.test.labels)
            result["num_test"] = len(data.test)
            if isinstance(data.test, ImageSet) and (error := reconstruction_error(predictor, data.test)) is not None:
                result["reconstruction_error"] = error
            draw_report(folder, predictor, data.test, probabilities, result)
        model.card = {
            "title": folder.name,
            "dataset": config.data,
            "data": f"{data.name}: {data.origin}",
            "terms of the data": data.terms,
        }
        model.card |= {name: result[name] for name in ("accuracy", "validation_accuracy", "seed") if name in result}
        save_model(model, folder)
        write_json(folder / RESULT, result)
    return result


def load_run_data(config: RunConfig) -> DataSet:
    """The data of a run, cut to what it uses; every seed is tested on the same examples, unless there are folds."""
    image_size = config.image_size if is_image_folder(config.data) else None
    data = load_data(config.data, image_size=image_size, columns=config.text.columns())
    train, test = data.train, data.test
    if config.folds and test is None:
        fold = np.random.default_rng(0).permutation(len(train)) % config.folds == config.training.seed % config.folds
        train, test = (train.subset(np.flatnonzero(part)) for part in (~fold, fold))
    if config.num_train is not None:
        train = choose_some(train, config.num_train, config.training.seed)
    if config.num_test is not None and test is not None:
        test = choose_some(test, config.num_test, 0) if config.num_test else None
    return replace(data, train=train, test=test)


def training_parts(config: RunConfig, data: DataSet) -> tuple[LabelledSet, LabelledSet | None]:
    """What is trained on, and what choices are made on: the data's own validation part, or what is held out."""
    if data.validation is not None and config.validation > 0:
        return data.train, data.validation
    return hold_out(config, data.train)


def hold_out(config: RunConfig, train: LabelledSet) -> tuple[LabelledSet, LabelledSet | None]:
    """What is trained on, and what is held out for choices."""
    if config.validation_instances:
        if not isinstance(train, ImageSet):
            raise ValueError(f"validation_instances is for images that show instances; {config.data} holds texts")
        return validation_by_instance(
            train, config.validation_instances, seed=config.training.seed, in_turn=config.validation_in_turn
        )
    if config.validation == 0:
        return train, None
    return split_validation(train, config.validation, config.training.seed)


def new_model(config: RunConfig, data: DataSet) -> Model:
    """An untrained model for the data, with its preprocessing and labels."""
    train = data.train
    kind = "text" if isinstance(train, TextSet) else "image"
    name = config.model or DEFAULT_MODELS[kind]
    if taken := sorted(FROM_DATA & config.model_options.keys()):
        raise ValueError(f"{taken[0]} is no option of the model: it comes from the data")
    _check_kind(config, kind)
    if isinstance(train, TextSet):
        return new_text_model(
            name,
            train.texts,
            class_names=data.class_names,
            multi_label=train.is_multi_label,
            options=config.text,
            others=[text for part in (data.validation, data.test) if part is not None for text in part.inputs],
            **config.model_options,
        )
    if len(data.class_names) < 2 and not train.is_multi_label:
        raise ValueError(f"{config.data} has only the class {data.class_names[0]!r}; a classifier needs at least two")
    images = train.inputs
    channels = images.shape[3] if images.ndim == 4 else 1
    preprocessing = Preprocessing(
        image_size=config.image_size or images.shape[1:3],
        channels=channels,
        scaling=config.scaling,
        crop=config.training.augmentation.crop,
    )
    model = create_model(
        name,
        image_shape=preprocessing.output_shape,
        num_classes=len(data.class_names),
        multi_label=train.is_multi_label,
        **config.model_options,
    )
    model.preprocessing, model.labels = preprocessing, data.class_names
    return model


def _check_kind(config: RunConfig, kind: str) -> None:
    """Raise if the run was told something about texts and has images, or the other way round."""
    usual = RunConfig()
    others = {"text": ("image_size", "scaling"), "image": ("text",)}[kind]
    if wrong := [name for name in others if getattr(config, name) != getattr(usual, name)]:
        other = "images" if kind == "text" else "texts"
        raise ValueError(f"{config.data} holds {kind}s, and the options of {wrong[0]} are for {other}; leave them away")


def scores(answers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The accuracy; multi-label: exact matches as accuracy, and precision, recall and F1 beside it."""
    if labels.ndim == 1:
        return {"accuracy": float((answers == labels).mean())}
    found = multi_label_scores(torch.from_numpy(answers), torch.from_numpy(labels))
    return {"accuracy": found["exact_match"]} | found


def reconstruction_error(predictor: Predictor, test: ImageSet, *, batch_size: int = 500) -> float | None:
    """Mean squared error, summed over pixels, of what is drawn from the winners' poses; None where nothing is drawn.

    Nor where several things are in an image: the winner is one of them.
    """
    if test.is_multi_label:
        return None
    errors = []
    for start in range(0, len(test), batch_size):
        images = test.images[start : start + batch_size]
        drawn = predictor.run(images).reconstruction
        if drawn is None:
            return None
        truth = predictor.model.preprocessing(images).to(drawn.device)
        errors.append(reconstruction_loss(drawn, truth, weight=1.0, reduction="none"))
    return float(torch.cat(errors).mean())


def draw_report(
    folder: Path, predictor: Predictor, test: ImageSet | TextSet, probabilities: np.ndarray, result: dict[str, Any]
) -> None:
    """Write report.png: curves, confusion, for images worst mistakes and reconstructions; for texts mistakes.tsv."""
    names, model, classes = predictor.labels, predictor.model, np.arange(len(test.class_names))
    truth, found = test.labels, model.decide(probabilities)
    if not test.is_multi_label:
        truth, found = truth[:, None] == classes, found[:, None] == classes
    confidence = np.where(found & ~truth, probabilities, 0).max(1)
    wrong = np.flatnonzero((found != truth).any(1))
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]

    def listed(flags: np.ndarray) -> str:
        return " + ".join(names[index] for index in np.flatnonzero(flags)) or "nothing"

    pictures, pairs = None, []
    if isinstance(test, TextSet):
        rows = [
            (f"{confidence[i]:.2f}", listed(truth[i]), listed(found[i]), " ".join(test[i][0].split())) for i in wrong
        ]
        lines = ["\t".join(row) + "\n" for row in [("confidence", "true", "found", "text"), *rows]]
        with whole_file(folder / MISTAKES) as path:
            path.write_text("".join(lines), encoding="utf-8")
    else:
        pictures = [
            (test.images[i], f"{listed(truth[i])} taken for\n{listed(found[i])} ({confidence[i]:.2f})")
            for i in wrong[:10]
        ]
        output = predictor.run(test.images[:10])
        if output.reconstruction is not None:
            inputs = model.preprocessing(test.images[:10])
            pairs = list(zip(inputs.numpy(), output.reconstruction.numpy(), strict=True))
    title = f"{model.name}: {100 * result['accuracy']:.2f} % of {len(test):,} test {model.kind}s right"
    confusion = confusion_matrix(torch.from_numpy(found), torch.from_numpy(truth)).numpy()
    history = MetricsFile(folder).read()
    with whole_file(folder / REPORT) as path:
        training_report(history, confusion, names, pictures, pairs, title=title).savefig(path, dpi=120, format="png")


def save_model(model: Model, folder: Path) -> None:
    """Write the trained model of a run, each file whole or not at all."""
    temporary, place = temporary_path(folder / MODEL), folder / MODEL
    try:
        with writing(place):
            temporary.mkdir()
            model.save_pretrained(temporary)
            place.mkdir(exist_ok=True)
            for path in temporary.iterdir():
                sync(path)
                os.replace(path, place / path.name)
            sync(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
