"""How a model is saved, shared and loaded: one folder with weights, configuration and card."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from torchcaps.inputs.base import Inputs
from torchcaps.models.backbones import check_backbone_trusted
from torchcaps.models.loading import check_weights, described_shapes, read_labels
from torchcaps.models.registry import find_saved, identity
from torchcaps.trust import check_trusted
from torchcaps.votes.sharing import read_options

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SHIPPED = Path(__file__).parent / "shipped"


class SavedModel(nn.Module, PyTorchModelHubMixin):
    """What of a model its folder holds; see Model for what it is."""

    name: ClassVar[str]
    kind: ClassVar[str]
    pipeline: ClassVar[str | None] = None
    old_options: ClassVar[Mapping[str, Any]] = {}
    preprocessing_class: ClassVar[type[Inputs]]
    preprocessing: Any
    task: Any
    num_classes: int
    multi_label: bool
    options: dict[str, Any]
    labels: tuple[str, ...]
    card: dict[str, Any]

    def config(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it."""
        from torchcaps import __version__

        return {
            "torchcaps": __version__,
            **identity(type(self)),
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
            f"pipeline_tag: {self.pipeline or f'{self.kind}-classification'}",
            "tags: [capsule-networks]",
            "---",
            f"# {self.card.get('title', self.name)}",
            "",
            f"A {self.name} of torchcaps with {num_parameters:,} parameters for {inputs} and {self.answers()}.",
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

    def read_preprocessing(self, saved: Mapping[str, Any]) -> Inputs:
        """From raw inputs to what the model takes, from what was saved of it."""
        return self.preprocessing_class.from_dict(saved)

    def answers(self) -> str:
        """What the model tells apart, in words."""
        return f"{self.num_classes} classes"

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
        folder = find_folder(name, **hub_options)
        config, source = read_config(folder), str(folder / CONFIG_FILE)
        model_class = find_saved(config, source)
        if model_class is None or not issubclass(model_class, cls):
            raise ValueError(f"{source} describes {config.get('model')!r}, which is not a {cls.__name__}")
        arguments = config.get("arguments")
        if not isinstance(arguments, dict):
            raise ValueError(f"{source} does not describe a model of this version: it has no arguments")
        arguments = {**model_class.old_options, **read_options(arguments)}
        check_trusted(arguments.get("routing"), source)
        check_backbone_trusted(arguments.get("backbone"), source)
        try:
            labels = read_labels(config["labels"], arguments["num_classes"])
            described = described_shapes(model_class, arguments)
        except Exception as error:  # wrong options make constructors raise nearly anything
            raise ValueError(f"{source} does not describe a model of this version: {error}") from error
        check_weights(folder / WEIGHTS_FILE, described)
        model = model_class(**arguments)
        try:
            model.labels = labels
            model.task.restore(config)
            model.preprocessing = model.read_preprocessing(config["preprocessing"])
            model.card = dict(config.get("card", {}))
        except Exception as error:
            raise ValueError(f"{source} does not describe a model of this version: {error}") from error
        try:
            model.load_state_dict(load_file(folder / WEIGHTS_FILE, device=str(map_location)))
        except (SafetensorError, RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{folder / WEIGHTS_FILE} is damaged or belongs to another model: {reason}") from error
        return model.eval()


def find_folder(name: str | Path, **hub_options: Any) -> Path:
    """The folder of a model: a path, the name of a shipped model, or the name of a repository on the hub."""
    for folder in (Path(name), SHIPPED / str(name)):
        if folder.is_dir():
            return folder
    shipped = sorted(path.name for path in SHIPPED.iterdir()) if SHIPPED.is_dir() else []
    choices = f"shipped models: {', '.join(shipped) or 'none'}"
    if str(name).count("/") != 1 or str(name).startswith((".", "/")):
        raise FileNotFoundError(f"no model at {str(name)!r}: give a folder, a shipped name or OWNER/NAME; {choices}")
    if (parent := Path(name).parent).is_dir():  # what lies here is not looked for on the hub, which tries for long
        near = get_close_matches(Path(name).name, [path.name for path in parent.iterdir()], n=1)
        hint = f"; did you mean {parent / near[0]}?" if near else ""
        raise FileNotFoundError(f"no model at {str(name)!r}, and the folder {str(parent)!r} is here{hint}")
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
