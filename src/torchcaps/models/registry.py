"""Models by name."""

import inspect
from pathlib import Path
from typing import Any

from torchcaps.checks import check_choice
from torchcaps.models.base import Model
from torchcaps.models.baselines import BaselineCNN, NoRouting, SmallCNN
from torchcaps.models.capsnet import CapsNet, CapsNetShared, CapsNetSmall
from torchcaps.models.matrix import MatrixCapsNet, MatrixCapsNetSmall, MatrixNoRouting
from torchcaps.models.text import TextCapsuleA, TextCapsuleB
from torchcaps.models.text_baselines import BiLSTM, KimCNN, TextNoRouting
from torchcaps.votes.sharing import NAME, OLD_NAME, warned

IMAGE_MODELS = (
    *(CapsNet, CapsNetSmall, CapsNetShared, MatrixCapsNet, MatrixCapsNetSmall),
    *(BaselineCNN, SmallCNN, NoRouting, MatrixNoRouting),
)
TEXT_MODELS = (TextCapsuleA, TextCapsuleB, KimCNN, BiLSTM, TextNoRouting)
MODELS: dict[str, type[Model]] = {model.name: model for model in (*IMAGE_MODELS, *TEXT_MODELS)}


def list_models(kind: str | None = None) -> list[str]:
    """Names that `create_model` takes: all of them, or those for "image" or "text"."""
    return sorted(name for name, model in MODELS.items() if kind is None or model.kind == kind)


def create_model(name: str, *, num_classes: int, multi_label: bool = False, **options: Any) -> Model:
    """A new model by name.

    Args:
        name: see `list_models`.
        num_classes: J.
        multi_label: several classes may be true at once.
        **options: the model's own arguments: for images `image_shape`, (channels, height, width), for texts
            `num_tokens`, the rows of the embedding; and whatever else it takes, such as `routing="kmeans"`.

    Example:
        >>> create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10, routing="kmeans").name
        'capsnet-small'
    """
    model_class = MODELS[check_choice("model", name, MODELS)]
    kind = "image" if "image_shape" in options else "text" if "num_tokens" in options else model_class.kind
    if model_class.kind != kind:
        raise ValueError(f"{name} does not take {kind}s; choose one of {', '.join(list_models(kind))}")
    if OLD_NAME in options and NAME in option_names(model_class):
        options = warned(options)
    for option in options:
        check_choice(f"an option of {name}", option, option_names(model_class))
    return model_class(num_classes=num_classes, multi_label=multi_label, **options)


def option_names(model_class: type[Model]) -> list[str]:
    """The arguments of a model beside its classes, also those that it hands on to the class it is derived from."""
    names: dict[str, None] = {}
    for base in model_class.__mro__:
        parameters = inspect.signature(base.__init__).parameters.values() if "__init__" in vars(base) else ()
        names |= dict.fromkeys(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
        if parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return [name for name in names if name not in ("num_classes", "multi_label")]


def load_model(name: str | Path, **hub_options: Any) -> Model:
    """A saved model: a folder, the name of a shipped model, or OWNER/NAME on the hub."""
    return Model.from_pretrained(name, **hub_options)
