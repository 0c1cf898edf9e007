"""Networks of transformers, of texts and of pictures: read as they were saved, or built from what a model keeps.

Needs the extra: pip install 'torchcaps[encoders]'. Importing this room does not import transformers. No code of a
folder's own is run, and weights are read from safetensors alone.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

NEEDS = "networks of transformers need the library: pip install 'torchcaps[encoders]'"
NO_SHAPE = ("_name_or_path", "transformers_version", "auto_map")  # what a configuration holds beside a shape


def load_config(place: str, *, revision: str | None = None) -> Any:
    """The configuration of a network in a folder, or of OWNER/NAME on the hub."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(place, **_usual(place, revision))


def load_tokenizer(place: str) -> Any:
    """The tokenizer beside a network."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place, **_usual(place, None))


def load_network(place: str, *, revision: str | None = None) -> nn.Module:
    """A network in a folder, or of OWNER/NAME on the hub, with its weights in 32 bits."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(place, use_safetensors=True, dtype=torch.float32, **_usual(place, revision))


def new_network(shape: Mapping[str, Any]) -> nn.Module:
    """A network of this shape, its weights at random.

    Args:
        shape: what `shape_of` gave for its configuration.
    """
    from transformers import AutoConfig, AutoModel

    values = {name: value for name, value in shape.items() if name not in ("model_type", *NO_SHAPE)}
    config = AutoConfig.for_model(shape["model_type"], **values)
    return AutoModel.from_config(config, trust_remote_code=False)


def shape_of(config: Any) -> dict[str, Any]:
    """What a saved model keeps of a configuration, as JSON can hold it."""
    values = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in values.items() if name not in NO_SHAPE}


@contextmanager
def reading(what: str, expected: str = "") -> Iterator[None]:
    """Without the bars and notes of transformers; what goes wrong inside, in one sentence.

    Args:
        what: is read.
        expected: what else to give.
    """
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ValueError(NEEDS) from error
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # it raises nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{what} cannot be read: {reason}" + (f"; {expected}" if expected else "")) from error
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


def _usual(place: str, revision: str | None) -> dict[str, Any]:
    """A folder never asks the network."""
    options: dict[str, Any] = {"trust_remote_code": False, "revision": revision or "main"}
    return options | ({"local_files_only": True} if Path(place).is_dir() else {})
