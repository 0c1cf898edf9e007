"""The state of a run in one file: tensors and JSON, checked, written whole or not at all."""

import json
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchcaps.storage import sync, whole_file

LAST, PREVIOUS = "last.safetensors", "previous.safetensors"


class CheckpointError(ValueError):
    """A checkpoint is missing or damaged."""


class CheckpointNotice(UserWarning):
    """The last checkpoint is damaged, and the one before it is used."""


class State(NamedTuple):
    """What a checkpoint holds, where it was found, and what is wrong with the one that should have been there."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]
    path: Path
    damage: str | None = None


def save_state(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write tensors and JSON values to `path`: complete on disk before it takes the name, or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values)
    with whole_file(path) as temporary:
        save_file(tensors, temporary, metadata={"values": text, "checksum": _checksum(tensors, text)})
        if path.name == LAST and path.exists():
            sync(temporary)  # or there would be a moment with one whole checkpoint less
            os.replace(path, path.with_name(PREVIOUS))


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` wrote; a damaged file is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # copies, because what is read may lie in the file until it is needed
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no dictionary)
        text = metadata["values"]
        if metadata["checksum"] != _checksum(tensors, text):
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        return tensors, json.loads(text)
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}") from error
    except (OSError, SafetensorError, KeyError, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {error}") from error


def load_latest(folder: Path) -> State | None:
    """The newest state in a folder that is whole: the last, or the one before it; None if there was none yet."""
    problems: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS):
        if not path.exists():
            continue
        try:
            return State(*load_state(path), path, problems[0] if problems else None)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable checkpoint: {'; '.join(problems)}; start again in another folder")
    return None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimiser as named tensors and JSON values."""
    state = optimizer.state_dict()["state"]
    tensors, values = {}, {}
    for index, entries in state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                values[f"{index}.{name}"] = value
    return tensors, values


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Put back what `optimizer_tensors` gave."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (with_prefix(tensors, "optimizer.") | values).items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    """CRC-32 over names, types, shapes, bytes and values."""
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"
