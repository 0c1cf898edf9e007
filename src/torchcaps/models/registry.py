"""Models by name."""

from pathlib import Path
from typing import Any

from torchcaps.checks import check_choice
from torchcaps.models.base import ImageModel
from torchcaps.models.baselines import BaselineCNN, NoRouting, SmallCNN
from torchcaps.models.capsnet import CapsNet, CapsNetSmall
from torchcaps.models.matrix import MatrixCapsNet, MatrixCapsNetSmall

MODELS: dict[str, type[ImageModel]] = {
    model.name: model
    for model in (CapsNet, CapsNetSmall, MatrixCapsNet, MatrixCapsNetSmall, BaselineCNN, SmallCNN, NoRouting)
}


def list_models() -> list[str]:
    """Names that `create_model` takes."""
    return sorted(MODELS)


def create_model(
    name: str, *, image_shape: tuple[int, int, int], num_classes: int, multi_label: bool = False, **options: Any
) -> ImageModel:
    """A new model by name.

    Args:
        name: see `list_models`.
        image_shape: (channels, height, width).
        num_classes: J.
        multi_label: several classes may be true at once.
        **options: the model's own arguments, such as `routing="kmeans"`.

    Example:
        >>> create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10, routing="kmeans").name
        'capsnet-small'
    """
    model_class = MODELS[check_choice("model", name, MODELS)]
    return model_class(image_shape=tuple(image_shape), num_classes=num_classes, multi_label=multi_label, **options)


def load_model(name: str | Path, **hub_options: Any) -> ImageModel:
    """A saved model: a folder, the name of a shipped model, or OWNER/NAME on the hub."""
    return ImageModel.from_pretrained(name, **hub_options)
