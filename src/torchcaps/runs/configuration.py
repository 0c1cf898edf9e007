"""What a run is told: everything that decides what it computes, written beside its results."""

import json
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any

from torchcaps.checks import check_choice, check_count
from torchcaps.data.interactions.options import InteractionOptions
from torchcaps.data.text import TextOptions
from torchcaps.inputs.images import SCALINGS
from torchcaps.models.registry import MODELS
from torchcaps.training import TrainingConfig
from torchcaps.votes.sharing import read_options

# What a run folder holds.
CONFIG, ENVIRONMENT, RESULT, MODEL, REPORT = "config.json", "environment.json", "result.json", "model", "report.png"
MISTAKES = "mistakes.tsv"
TASKS = ("classify", "recommend")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    Attributes:
        data: name or path, see `torchcaps.data.load_data`, and for recommendations
            `torchcaps.data.interactions.load_interactions`.
        task: "classify" images or texts, or "recommend" items to people.
        model: name, see `torchcaps.models.list_models`; None takes capsnet-small for images, text-capsule-a for texts,
            on an encoder text-capsules, mind for people.
        model_options: arguments of the model, such as {"routing": "kmeans"}.
        image_size: (height, width) to which images are brought, None to keep theirs.
        scaling: "unit", "standardise", "standardise_crop" or "local_contrast", see Preprocessing.
        text: how texts are read and encoded.
        interactions: how interactions of people with items are read, and what of them is held out.
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
    task: str = "classify"
    model: str | None = None
    model_options: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    scaling: str = "unit"
    text: TextOptions = field(default_factory=TextOptions)
    interactions: InteractionOptions = field(default_factory=InteractionOptions)
    folds: int = 0
    num_train: int | None = None
    num_test: int | None = None
    validation: float = 0.1
    validation_instances: int = 0
    validation_in_turn: bool = False
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("task", self.task, TASKS)
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
    def read(cls, folder: Traversable) -> "RunConfig":
        """The configuration of a run folder, which may lie in an archive."""
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
                "interactions": InteractionOptions(**values.get("interactions", {})),
                "training": TrainingConfig.from_dict(values["training"]),
            }
            return cls(**(values | parts))
        except Exception as error:  # wrong values make constructors raise nearly anything
            raise ValueError(f"{path} does not describe a run of this version: {error}") from error
