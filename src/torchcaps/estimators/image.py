"""Capsule networks for images, as a scikit-learn classifier."""

from math import ceil, isqrt
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data  # pyrefly: ignore[missing-module-attribute] (older stubs)

from torchcaps.data.augment import Augmentation
from torchcaps.data.sets import check_channels_last
from torchcaps.estimators.base import CapsuleClassifier
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import Model, create_model
from torchcaps.training import TrainingConfig

LEAST_STEPS, MOST_STEPS, LEAST_EPOCHS = 30, 480, 3
VALUES_PER_STEP = 200  # a table of few numbers needs few steps, images many
SIDE_PER_SHIFT = 14  # images of 28 x 28 are shifted by up to 2 pixels, as CapsNet was trained on digits


class CapsuleImageClassifier(CapsuleClassifier):
    """A capsule network that classifies images.

    Images are (n, h, w), (n, h, w, c) or rows (n, d): a row is a square image if d is a square number, else an image of
    1 x d, unless `image_shape` says otherwise. uint8 images lie between 0 and 255; the range of others is that of the
    training images, and a later value beyond it counts as the nearest inside. Whole numbers up to 255 where those in
    training lay between 0 and 1, or the other way round, are refused.

    Args:
        model: name, see `torchcaps.models.list_models`.
        backbone: of "backbone-capsules", which is then the model: a name such as "resnet-20", a folder of transformers
            or OWNER/NAME on the hub; see `torchcaps.models.BackboneCapsules`. `model_options` choose its head.
        routing: of the model, such as "kmeans"; None is the model's own.
        model_options: more arguments of the model, such as {"reconstruct": True}.
        image_shape: (h, w) or (h, w, c) of images that come as rows.
        image_size: (height, width) to which images are brought; None keeps theirs.
        epochs: passes over the training images; None chooses from their number and size.
        batch_size: images per step; None is 64, less for small data.
        learning_rate: at its highest.
        shift: training images are moved by up to this many pixels; None is 1/14 of the shorter side.
        training_options: more fields of `torchcaps.training.TrainingConfig`.
        class_weight: None, "balanced" or {label: weight}.
        early_stopping: epochs without improvement on held-out images after which training ends and the best weights
            are taken; None for never.
        validation_fraction: share of the images held out for early stopping.
        device: "cpu", or a kind of accelerator such as "cuda"; "auto" takes the accelerator if there is one.
        random_state: a number gives the same result each time.
        verbose: show a progress bar.

    Attributes:
        image_shape_: (h, w, c) of the training images.
        pixel_range_: what counts as black and white.
        classes_, model_, n_iter_: see CapsuleClassifier.

    Example:
        >>> images = np.zeros((8, 8, 8), dtype=np.uint8)
        >>> images[4:, 2:6] = 255
        >>> classifier = CapsuleImageClassifier(epochs=8, random_state=0).fit(images, ["blank"] * 4 + ["bar"] * 4)
        >>> classifier.predict(images[::4]).tolist()
        ['blank', 'bar']
    """

    def __init__(
        self,
        *,
        model: str = "capsnet-small",
        backbone: str | None = None,
        routing: str | None = None,
        model_options: dict[str, Any] | None = None,
        image_shape: tuple[int, ...] | None = None,
        image_size: tuple[int, int] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 2e-3,
        shift: int | None = None,
        training_options: dict[str, Any] | None = None,
        class_weight: Any = None,
        early_stopping: int | None = None,
        validation_fraction: float = 0.1,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.backbone = backbone
        self.routing = routing
        self.model_options = model_options
        self.image_shape = image_shape
        self.image_size = image_size
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.shift = shift
        self.training_options = training_options
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _check_inputs(self, X: Any, y: Any = None, *, is_first: bool) -> tuple[np.ndarray, Any]:
        """Images (n, h, w, c), uint8 or floating point between 0 and 1."""
        if isinstance(X, list | tuple):
            X = np.asarray(X)
        shape = tuple(X.shape[1:]) if getattr(X, "ndim", 2) in (3, 4) else None
        if shape is not None:
            check_channels_last(X.shape)
            X = np.asarray(X).reshape(len(X), -1)
        if is_first:
            X, y = validate_data(self, X, y, multi_output=True)
            self.image_shape_ = _with_channels(shape or self._shape_of_rows(X.shape[1]))
            self._largest = float(X.max())
            self.pixel_range_ = (0.0, 255.0) if X.dtype == np.uint8 else (float(X.min()), float(X.max()))
        elif y is not None:
            X, y = validate_data(self, X, y, multi_output=True, reset=False)
        else:
            X = validate_data(self, X, reset=False)
        if shape is not None and _with_channels(shape) != self.image_shape_:
            raise ValueError(f"images must have shape {self.image_shape_} as in training, got {shape}")
        if not is_first:
            self._check_range(X)
        images = X.reshape(len(X), *self.image_shape_)
        if images.dtype == np.uint8 and self.pixel_range_ == (0.0, 255.0):
            return images, y
        low, high = self.pixel_range_
        return ((images - low) / (high - low or 1.0)).clip(0, 1).astype(np.float32), y

    def _check_range(self, X: np.ndarray) -> None:
        """Raise if 0 to 1 has become 0 to 255 since the training, or the other way round."""
        low, high = float(X.min()), float(X.max())
        was_bytes = self.pixel_range_ == (0.0, 255.0) and self._largest > 1
        if was_bytes and X.dtype.kind == "f" and low >= 0 and 0 < high <= 1:
            raise ValueError("images lie between 0 and 1 but lay between 0 and 255 in training; multiply them by 255")
        if X.dtype.kind in "ui" and self.pixel_range_[1] <= 1 < high:
            raise ValueError(
                f"images are whole numbers up to {high:.0f} but lay between {self.pixel_range_[0]:g} and "
                f"{self.pixel_range_[1]:g} in training; scale them in the same way"
            )

    def _shape_of_rows(self, num_values: int) -> tuple[int, ...]:
        if self.image_shape is None:
            side = isqrt(num_values)
            return (side, side) if side * side == num_values else (1, num_values)
        if len(self.image_shape) not in (2, 3) or np.prod(self.image_shape) != num_values:
            raise ValueError(f"image_shape {self.image_shape} does not describe rows of {num_values} values")
        return tuple(self.image_shape)

    def _new_model(self, inputs: np.ndarray, num_classes: int, multi_label: bool) -> Model:
        height, width, channels = self.image_shape_
        preprocessing = Preprocessing(image_size=self.image_size or (height, width), channels=channels)
        options: dict[str, Any] = {} if self.routing is None else {"routing": self.routing}
        name = self.model
        if self.backbone is not None:
            if name not in ("capsnet-small", "backbone-capsules"):
                raise ValueError(f"backbone is an argument of 'backbone-capsules', not of {name!r}; leave one out")
            name, options["backbone"] = "backbone-capsules", self.backbone
        if name.startswith("capsnet"):
            options["reconstruct"] = False  # nobody asks an estimator for pictures
        model = create_model(
            name,
            image_shape=preprocessing.output_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            **(options | (self.model_options or {})),
        )
        model.preprocessing = preprocessing
        return model

    def _training_config(self, inputs: np.ndarray) -> TrainingConfig:
        batch_size = self._batch_size(len(inputs))
        steps = min(max(LEAST_STEPS, inputs.size // VALUES_PER_STEP), MOST_STEPS)
        epochs = max(LEAST_EPOCHS, ceil(steps * batch_size / len(inputs)))
        _, height, width = self.model_.preprocessing.output_shape
        shift = round(min(height, width) / SIDE_PER_SHIFT) if self.shift is None else self.shift
        return self._with_options(epochs=epochs, batch_size=batch_size, augmentation=Augmentation(shift=shift))


def _with_channels(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(h, w, c) of one image."""
    height, width, channels = (*shape, 1)[:3]
    return height, width, channels
