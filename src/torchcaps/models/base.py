"""What every model answers to: one forward signature, one way to be saved, shared and loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torchcaps.checks import check_count
from torchcaps.inputs.base import Inputs
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.source import Source
from torchcaps.models.loading import check_weights, described_shapes, read_labels
from torchcaps.models.stems import stem_window
from torchcaps.nn.routing import check_trusted
from torchcaps.routing import RoutingResult
from torchcaps.tasks import ModelOutput, classification
from torchcaps.votes.sharing import read_options
from torchcaps.windows import GridWindow

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SHIPPED = Path(__file__).parent / "shipped"


class Model(nn.Module, PyTorchModelHubMixin):
    """A classifier that can be rebuilt from what it saves.

    Subclasses take keyword arguments that JSON can hold and pass them all to `super().__init__`.

    Args:
        num_classes: J.
        multi_label: several classes may be true at once.
        **options: the subclass's own arguments, kept so that a saved folder rebuilds the model.

    Attributes:
        name: in the registry.
        default_loss: "margin", "spread", "cross_entropy" or "softmax_cross_entropy".
        named_options: options that every run writes down, given or not, since their default has changed.
        old_options: what they were before they had a name: those of a saved folder that does not name them.
        reconstruction_weight: of the summed squared error of an image in training, unless that is told another.
        gives_activations: whether scores are activations in [0, 1]; otherwise they are logits.
        kind: of data, "image" or "text"; that of its inputs.
        preprocessing_class: of `preprocessing`.
        labels: names of the classes.
        preprocessing: from raw inputs to what `forward` takes, see `torchcaps.inputs`.
        task: what is asked of the model, see `torchcaps.tasks`: classification, unless another is set.
        learning_rates: of parameters by name, relative to that of the others; 1 where none is given.
        card: what the model card states: data, terms, results.
    """

    name: ClassVar[str]
    default_loss: str = "margin"
    reconstruction_weight: ClassVar[float] = 0.0005  # the paper's
    named_options: ClassVar[Mapping[str, Any]] = {}
    old_options: ClassVar[Mapping[str, Any]] = {}
    gives_activations: ClassVar[bool] = True
    kind: ClassVar[str]
    preprocessing_class: ClassVar[type[Inputs]]
    preprocessing: Any
    task: Any

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

    def last_features(self, inputs: Tensor, /) -> Tensor:
        """What the last linear layer of a model without capsules reads: (B, features)."""
        raise ValueError(f"{self.name} has no features before a last linear layer: it does not implement last_features")

    def before_training(self, source: Source) -> None:
        """Count what is to be counted in the training examples; most models count nothing."""

    def config(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it."""
        from torchcaps import __version__

        return {
            "torchcaps": __version__,
            "model": self.name,
            "arguments": {"num_classes": self.num_classes, "multi_label": self.multi_label, **self.options},
            "labels": list(self.labels),
            **self.task.to_dict(),
            "preprocessing": self.preprocessing.to_dict(),
            "card": self.card,
        }

    def _save_pretrained(self, save_directory: Path) -> None:
        weights = {name: tensor.detach().contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, save_directory / WEIGHTS_FILE, metadata={"format": "pt"})
        text = json.dumps(self.config(), indent=2, ensure_ascii=False)
        (save_directory / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        (save_directory / "README.md").write_text(str(self.generate_model_card()), encoding="utf-8")

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card of the model: what it is, what it was trained on and under which terms."""
        num_parameters = sum(parameter.numel() for parameter in self.parameters())
        inputs, call = self.describe()
        lines = [
            "---",
            "library_name: torchcaps",
            f"pipeline_tag: {self.kind}-classification",
            "tags: [capsule-networks]",
            "---",
            f"# {self.card.get('title', self.name)}",
            "",
            f"A {self.name} of torchcaps with {num_parameters:,} parameters for {inputs} and {self.num_classes} "
            "classes.",
            "",
            "    import torchcaps",
            '    predictor = torchcaps.load("FOLDER")',
            f"    {call}",
            "",
            *(f"- {key}: {value}" for key, value in self.card.items() if key != "title"),
        ]
        return ModelCard("\n".join(lines) + "\n")

    def describe(self) -> tuple[str, str]:
        """What the model takes, and a line of code that gives it that."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(  # pyrefly: ignore[bad-override]
        cls, name: str | Path, *, map_location: str | torch.device = "cpu", **hub_options: Any
    ) -> Self:
        """The model of a folder, a shipped name or OWNER/NAME on the hub, ready for inference.

        Nothing is unpickled, no code of the folder's own is run, and memory is given to weights that are there.

        Args:
            name: where the model is; a folder or shipped name needs no network.
            map_location: device of the weights.
            **hub_options: revision, cache_dir, force_download, local_files_only, token.
        """
        from torchcaps.models.registry import MODELS

        folder = find_folder(name, **hub_options)
        config = read_config(folder)
        model_class = MODELS.get(str(config.get("model")))
        if model_class is None or not issubclass(model_class, cls):
            raise ValueError(f"{folder / CONFIG_FILE} describes {config.get('model')!r}, which is not a {cls.__name__}")
        arguments = config.get("arguments")
        if not isinstance(arguments, dict):
            raise ValueError(f"{folder / CONFIG_FILE} does not describe a model of this version: it has no arguments")
        arguments = {**model_class.old_options, **read_options(arguments)}
        check_trusted(arguments.get("routing"), str(folder / CONFIG_FILE))
        try:
            labels = read_labels(config["labels"], arguments["num_classes"])
            described = described_shapes(model_class, arguments)
        except Exception as error:  # wrong options make constructors raise nearly anything
            raise ValueError(f"{folder / CONFIG_FILE} does not describe a model of this version: {error}") from error
        check_weights(folder / WEIGHTS_FILE, described)
        model = model_class(**arguments)
        try:
            model.labels = labels
            model.task.restore(config)
            model.preprocessing = model_class.preprocessing_class.from_dict(config["preprocessing"])
            model.card = dict(config.get("card", {}))
        except Exception as error:
            raise ValueError(f"{folder / CONFIG_FILE} does not describe a model of this version: {error}") from error
        try:
            model.load_state_dict(load_file(folder / WEIGHTS_FILE, device=str(map_location)))
        except (SafetensorError, RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{folder / WEIGHTS_FILE} is damaged or belongs to another model: {reason}") from error
        return model.eval()


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


def find_folder(name: str | Path, **hub_options: Any) -> Path:
    """The folder of a model: a path, the name of a shipped model, or the name of a repository on the hub."""
    for folder in (Path(name), SHIPPED / str(name)):
        if folder.is_dir():
            return folder
    shipped = sorted(path.name for path in SHIPPED.iterdir()) if SHIPPED.is_dir() else []
    choices = f"shipped models: {', '.join(shipped) or 'none'}"
    if str(name).count("/") != 1 or str(name).startswith((".", "/")):
        raise FileNotFoundError(f"no model at {str(name)!r}: give a folder, a shipped name or OWNER/NAME; {choices}")
    try:
        files = [hf_hub_download(str(name), filename, **hub_options) for filename in (CONFIG_FILE, WEIGHTS_FILE)]
    except Exception as error:  # the hub's client raises many kinds
        raise FileNotFoundError(f"no folder {str(name)!r}, and the hub did not give it ({error}); {choices}") from error
    return Path(files[0]).parent


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a saved model."""
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileNotFoundError(f"{folder} is not a saved model: it has no readable {CONFIG_FILE}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(config, dict) or "torchcaps" not in config:
        raise ValueError(f"{path} was not written by torchcaps; save the model with save_pretrained")
    return config
