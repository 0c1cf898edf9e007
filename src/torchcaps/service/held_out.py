"""Test data of what a model was trained on, from what the package holds or the user has."""

from typing import Any

from torchcaps.data import load_data
from torchcaps.data.load import SOURCES
from torchcaps.data.text import SOURCES as TEXT_SOURCES
from torchcaps.models import Model

EMBEDDED_FOR = {"mnist": "digits"}  # a set that is not embedded, and one that holds some of its test examples


def held_out(model: Model) -> Any:
    """The test part of the data that a model was trained on, as far as it is here; None if it is not."""
    name = str(model.card.get("dataset"))
    return test_part(EMBEDDED_FOR.get(name, name), model)


def test_part(name: str, model: Model) -> Any:
    """The test part of a set, if it is there and has the classes of the model."""
    if name not in SOURCES and name not in TEXT_SOURCES:  # a path in a model's card is not followed
        return None
    try:
        part = load_data(name).test
    except (OSError, ValueError):
        return None
    return part if part is not None and tuple(part.class_names) == model.labels else None
