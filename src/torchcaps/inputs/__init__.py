"""What a model does to raw data: images are scaled and cropped, texts become the numbers of their words.

Names are resolved on first use, so that texts can be read without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

_HOMES = {
    "HistoryEncoding": "histories",
    "Inputs": "base",
    "Preprocessing": "images",
    "Source": "source",
    "SubwordEncoding": "subwords",
    "TextEncoding": "texts",
}

__all__ = ["HistoryEncoding", "Inputs", "Preprocessing", "Source", "SubwordEncoding", "TextEncoding"]

if TYPE_CHECKING:
    from torchcaps.inputs.base import Inputs
    from torchcaps.inputs.histories import HistoryEncoding
    from torchcaps.inputs.images import Preprocessing
    from torchcaps.inputs.source import Source
    from torchcaps.inputs.subwords import SubwordEncoding
    from torchcaps.inputs.texts import TextEncoding


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps.inputs' has no attribute {name!r}")
    return getattr(import_module(f"torchcaps.inputs.{_HOMES[name]}"), name)
