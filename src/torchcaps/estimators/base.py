"""What all estimators share: classes and targets, the training engine, probabilities, pickling."""

from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import fields, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

from torchcaps.checks import check_choice
from torchcaps.data.sampling import split_indices
from torchcaps.models import Model
from torchcaps.predictor import Predictor
from torchcaps.training import Progress, TrainingConfig, fit
from torchcaps.training.progress import TrainingProgress

BATCH_SIZE = 64
LEAST_BATCHES = 4  # small data are cut into as many batches, so that their gradients differ


class CapsuleClassifier(ClassifierMixin, BaseEstimator):
    """A classifier on the training engine; a subclass knows what its inputs are.

    Subclasses take the arguments that are declared here.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        model_: the trained network; `model_.save_pretrained(folder)` shares it without scikit-learn.
        n_iter_: epochs trained.
    """

    epochs: int | None
    batch_size: int | None
    learning_rate: float
    training_options: dict[str, Any] | None
    class_weight: Any
    early_stopping: int | None
    validation_fraction: float
    device: str
    random_state: Any
    verbose: bool
    classes_: np.ndarray
    model_: Model
    n_iter_: int

    @abstractmethod
    def _check_inputs(self, X: Any, y: Any = None, *, is_first: bool) -> tuple[np.ndarray, Any]:
        """Inputs as the model's preprocessing takes them, and y; the first ones decide what later ones must be."""

    @abstractmethod
    def _new_model(self, inputs: np.ndarray, num_classes: int, multi_label: bool) -> Model:
        """An untrained model with its preprocessing."""

    @abstractmethod
    def _training_config(self, inputs: np.ndarray) -> TrainingConfig:
        """How to train on these inputs."""

    def fit(self, X: Any, y: Any) -> "CapsuleClassifier":
        """Train from scratch.

        Args:
            X: the inputs.
            y: labels (n,), or a multi-hot (n, J) of 0 and 1 where several classes may be true at once.
        """
        inputs, y = self._check_inputs(X, y, is_first=True)
        y = _checked_labels(y)
        self.classes_ = np.arange(y.shape[1]) if y.ndim == 2 else np.unique(y)
        self._start(inputs, multi_label=y.ndim == 2)
        targets = self._targets(y)
        self.model_.task.look_at(targets)
        progress = self._train(inputs, targets, self._training_config(inputs))
        self.n_iter_ = progress.epoch
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "CapsuleClassifier":
        """One pass over the data, from the weights that are there, at a constant learning rate.

        Args:
            X: the inputs.
            y: labels, as in `fit`.
            classes: all labels that will ever come; needed in the first call.
        """
        is_first = not hasattr(self, "model_")
        if is_first and classes is None:
            raise ValueError("classes must be given in the first call to partial_fit: all labels that will ever come")
        inputs, y = self._check_inputs(X, y, is_first=is_first)
        y = _checked_labels(y)
        if is_first:
            self.classes_ = np.unique(classes)
            self._start(inputs, multi_label=y.ndim == 2)
            self.n_iter_ = 0
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes {list(classes)} are not those of the first call, {self.classes_.tolist()}")
        options = {"epochs": 1, "schedule": "constant", "warmup": 0.0, "ema": None, "early_stopping": None}
        config = self._training_config(inputs)
        self._train(inputs, self._targets(y), replace(config, **options, seed=config.seed + self.n_iter_))
        self.n_iter_ += 1
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each input (n,); multi-label: 0 or 1 for each class (n, J)."""
        probabilities = self.predict_proba(X)
        answers = self.model_.task.decide(probabilities)
        return answers.astype(np.int64) if self.model_.task.multi_label else self.classes_[answers]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, (n, J); rows add up to 1 unless several classes may be true at once."""
        check_is_fitted(self)
        inputs, _ = self._check_inputs(X, is_first=False)
        probabilities = Predictor(self.model_).predict_proba(inputs).astype(np.float64)
        if not self.model_.task.multi_label:
            probabilities /= probabilities.sum(axis=1, keepdims=True)
        return probabilities

    def _start(self, inputs: np.ndarray, *, multi_label: bool) -> None:
        """A new model; all randomness of the training that follows comes from one number drawn here."""
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self.model_ = self._new_model(inputs, len(self.classes_), multi_label)
        self.model_.labels = tuple(str(label) for label in self.classes_)

    def _batch_size(self, num_inputs: int) -> int:
        """As asked for; else as usual, less for small data."""
        return min(BATCH_SIZE, ceil(num_inputs / LEAST_BATCHES)) if self.batch_size is None else self.batch_size

    def _with_options(self, **chosen: Any) -> TrainingConfig:
        """What was chosen for the data at hand, but where the arguments of the estimator say otherwise."""
        given: dict[str, Any] = {
            "epochs": self.epochs,
            "class_weights": self._class_weights(),
            "early_stopping": self.early_stopping,
            "learning_rate": self.learning_rate,
            "seed": self._seed,
        }
        given = {name: value for name, value in given.items() if value is not None}
        more = self.training_options or {}
        for name in more:
            check_choice("a name in training_options", name, [field.name for field in fields(TrainingConfig)])
        return TrainingConfig(**(chosen | given | more))

    def _train(self, inputs: np.ndarray, targets: np.ndarray, config: TrainingConfig) -> Progress:
        """Train the model, silently or with a bar; the caller's random numbers are left alone."""
        train, validation = np.arange(len(targets)), None
        if config.early_stopping is not None:
            train, validation = split_indices(targets, self.validation_fraction, config.seed)
        bar = TrainingProgress(Console()) if self.verbose else None
        with torch.random.fork_rng(devices=[]), bar or nullcontext():
            return fit(
                self.model_,
                _pairs(inputs, targets, train),
                None if validation is None else _pairs(inputs, targets, validation),
                config,
                on_event=None if bar is None else bar.on_event,
                device=self.device,
            )

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Class numbers (n,) int64, or what is true (n, J) bool."""
        if self.model_.task.multi_label != (y.ndim == 2) or (y.ndim == 2 and y.shape[1] != len(self.classes_)):
            raise ValueError(f"y of shape {y.shape} does not fit {len(self.classes_)} classes of the first call")
        if y.ndim == 2:
            return y.astype(bool)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has labels that are not among the classes {self.classes_.tolist()}: {unknown[:5]}")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _class_weights(self) -> Any:
        """`class_weight` as the engine takes it; classes that it does not name weigh 1."""
        if self.class_weight is None or self.class_weight == "balanced":
            return self.class_weight
        if not isinstance(self.class_weight, dict):
            raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {self.class_weight!r}")
        labels = self.classes_.tolist()
        if unknown := [label for label in self.class_weight if label not in labels]:
            raise ValueError(f"class_weight names classes that y does not have: {unknown}")
        return tuple(float(self.class_weight.get(label, 1)) for label in labels)

    def __getstate__(self) -> dict[str, Any]:
        # whoever loads the pickle may have no accelerator
        if "model_" in self.__dict__:
            self.model_.cpu()
        return super().__getstate__()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute] (older stubs)
        tags.classifier_tags.multi_label = True
        return tags


def _checked_labels(y: Any) -> np.ndarray:
    """Labels (n,) or multi-hot (n, J)."""
    missing = next((number for number, label in enumerate(y) if _is_missing(label)), None)
    if missing is not None:
        raise ValueError(f"y must name a class for each input, but number {missing} has none")
    check_classification_targets(y)
    kind = type_of_target(y)
    if kind == "multilabel-indicator":
        return np.asarray(y)
    if kind == "multiclass-multioutput":
        raise ValueError(
            "y must hold one label for each input, or 0 and 1 for each class; got several columns of labels"
        )
    return column_or_1d(y, warn=True)


def _is_missing(label: Any) -> bool:
    return label is None or (isinstance(label, float) and label != label)


def _pairs(inputs: np.ndarray, targets: np.ndarray, indices: np.ndarray) -> list[tuple[np.ndarray, Any]]:
    """The dataset that the engine reads."""
    return [(inputs[index], targets[index]) for index in indices]
