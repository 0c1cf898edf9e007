"""The state of a run in one file: tensors and JSON, checked, written whole or not at all."""

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

LAST, PREVIOUS, BEST = "last.safetensors", "previous.safetensors", "best.safetensors"


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or could not be written."""


def save_state(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write tensors and JSON values to `path`: complete on disk before it takes the name, or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={"values": text, "checksum": _checksum(tensors, text)})
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if path.name == LAST and path.exists():
            os.replace(path, path.with_name(PREVIOUS))
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"could not write {path} ({error}); the last good checkpoint is untouched: "
            "make room or choose a writable folder, then resume"
        ) from error


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_state` wrote; a damaged file is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
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


def load_latest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest state in a folder that is whole: the last, or the one before it; None if there was none yet."""
    problems = []
    for name in (LAST, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            return load_state(folder / name)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("no usable checkpoint: " + "; ".join(problems))
    return None


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a run folder to one process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(f"another process is using {folder}; wait for it or choose another folder") from error
        yield


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
