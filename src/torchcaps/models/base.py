"""What every model answers to: one forward signature, one account of its routing; `saving` keeps and rebuilds it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from torchcaps.checks import check_count
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.source import Source
from torchcaps.models.saving import SavedModel
from torchcaps.models.stems import stem_window
from torchcaps.routing import RoutingResult
from torchcaps.tasks import classification
from torchcaps.tasks.task import ModelOutput
from torchcaps.windows import GridWindow


class Model(SavedModel):
    """A classifier that can be rebuilt from what it saves.

    Subclasses take keyword arguments that JSON can hold and pass them all to `super().__init__`.

    Args:
        num_classes: J.
        multi_label: several classes may be true at once.
        **options: the subclass's own arguments, kept so that a saved folder rebuilds the model.

    Attributes:
        name: in the registry, see `register_model`; that of the class unless it is given one.
        default_loss: "margin", "spread", "cross_entropy" or "softmax_cross_entropy".
        named_options: options that every run writes down, given or not, since their default has changed.
        old_options: what they were before they had a name: those of a saved folder that does not name them.
        reconstruction_weight: of the summed squared error of an image in training, unless that is told another.
        gives_activations: whether scores are activations in [0, 1]; otherwise they are logits.
        kind: of data, "image", "text" or "user"; that of its inputs.
        pipeline: what the hub calls the task, if it is no classification.
        preprocessing_class: of `preprocessing`.
        labels: names of the classes.
        preprocessing: from raw inputs to what `forward` takes, see `torchcaps.inputs`.
        task: what is asked of the model, see `torchcaps.tasks`: classification, unless another is set.
        learning_rates: of parameters by name, relative to that of the others; 1 where none is given.
        card: what the model card states: data, terms, results.
    """

    default_loss: str = "margin"
    reconstruction_weight: ClassVar[float] = 0.0005  # the paper's
    named_options: ClassVar[Mapping[str, Any]] = {}
    gives_activations: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):  # that of the class it is derived from would say something wrong
            cls.name = cls.__name__

    def __init__(self, *, num_classes: int, multi_label: bool = False, **options: Any) -> None:
        super().__init__()
        self.num_classes = check_count("num_classes", num_classes)
        self.multi_label = multi_label
        self.options = options
        self.labels = tuple(str(index) for index in range(num_classes))
        self.learning_rates: dict[str, float] = {}
        self.task = classification(num_classes, multi_label=multi_label, gives_activations=self.gives_activations)
        self.card: dict[str, Any] = {}

    def forward(self, inputs: Tensor, /, classes: Tensor | None = None) -> ModelOutput:
        """Classify; `classes`, (B,) or (B, J), are those to reconstruct, else the most active.

        A capsule model that implements `route` needs no more than that.
        """
        return self.conclude(self.route(inputs), classes)

    def answer(self, inputs: Tensor, /) -> ModelOutput:
        """What `forward` says, without the reconstruction: whoever asks for an answer does not look at it."""
        return self(inputs)

    def route(self, inputs: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        """How a batch goes through the capsule layers: their names, as `get_submodule` takes them, and their results.

        Layers come in the order in which they are routed, the classes last. Pictures and explorer stand on this: a
        capsule model that implements it is drawn and explored.

        Args:
            inputs: as `forward` takes them.
            return_trace: keep every iteration of every layer.
        """
        raise ValueError(f"{self.name} has no routing that could be shown: it does not implement route")

    def conclude(self, results: Mapping[str, RoutingResult], classes: Tensor | None = None) -> ModelOutput:
        """The answer from the routing of all layers; by default the capsules of the last layer are the classes."""
        capsules = list(results.values())[-1].capsules
        return ModelOutput(capsules.activations, capsules.poses)

    @property
    def is_routed(self) -> bool:
        """Whether the model implements `route`."""
        return type(self).route is not Model.route

    @property
    def frozen_parts(self) -> tuple[nn.Module, ...]:
        """Parts that training leaves as they are, the statistics of their norms included."""
        return ()

    def last_features(self, inputs: Tensor, /) -> Tensor:
        """What the last linear layer of a model without capsules reads: (B, features)."""
        raise ValueError(f"{self.name} has no features before a last linear layer: it does not implement last_features")

    def make_whole(self) -> None:
        """Take in what the model reads from elsewhere, for a file that runs without it; most models hold all."""

    def before_training(self, source: Source) -> None:
        """Count what is to be counted in the training examples; most models count nothing."""


class ImageModel(Model):
    """A classifier of images.

    Args:
        image_shape: (channels, height, width) of what the model sees, after preprocessing.
        num_classes, multi_label, **options: see Model.
    """

    kind = Preprocessing.kind
    preprocessing_class = Preprocessing
    least_size: ClassVar[int] = 1

    def __init__(
        self, *, image_shape: tuple[int, int, int], num_classes: int, multi_label: bool = False, **options: Any
    ) -> None:
        if len(image_shape) != 3 or not all(isinstance(size, int) and size >= 1 for size in image_shape):
            raise ValueError(f"image_shape must be (channels, height, width), got {image_shape!r}")
        super().__init__(num_classes=num_classes, multi_label=multi_label, image_shape=list(image_shape), **options)
        channels, height, width = self.image_shape = tuple(image_shape)
        self.preprocessing = Preprocessing(image_size=(height, width), channels=channels)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        """Classify images (B, C, H, W); `classes`, (B,) or (B, J), are those to reconstruct, else the most active."""
        return super().forward(images, classes)

    def first_window(self) -> GridWindow:
        """What the first place of the first capsules sees of an image, and how far the next one is.

        It is read off the convolutions and poolings of `features` and `primary`, one after the other. A model that is
        built otherwise gives its own.
        """
        parts = [part for name in ("features", "primary") if isinstance(part := getattr(self, name, None), nn.Module)]
        if len(parts) < 2:
            raise ValueError(
                f"{self.name} does not tell what its first capsules see of an image: it has no features and primary, "
                "and does not implement first_window"
            )
        top, left = ((self.padded_shape[axis] - self.image_shape[axis]) // 2 for axis in (1, 2))
        return stem_window(parts, border=(top, left))

    def pad(self, images: Tensor) -> Tensor:
        """Check the images and put a border of zeros around those too small for the first layers."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(
                f"images must have shape (B, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}"
            )
        missing = [max(0, self.least_size - size) for size in self.image_shape[1:]]
        if not any(missing):
            return images
        top, left = missing[0] // 2, missing[1] // 2
        return nn.functional.pad(images, (left, missing[1] - left, top, missing[0] - top))

    @property
    def padded_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) as the first layer sees it."""
        channels, height, width = self.image_shape
        return channels, max(height, self.least_size), max(width, self.least_size)

    def describe(self) -> tuple[str, str]:
        return (
            f"images of shape {self.image_shape}",
            "predictor.predict(images)  # uint8 (n, height, width[, channels])",
        )
