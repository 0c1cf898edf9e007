"""What is asked of the files of a saved model before memory is given to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.overrides import TorchFunctionMode

Shapes = dict[str, tuple[int, ...]]


class NeverFilled(TorchFunctionMode):
    """Tensors of the meta device have shapes alone; filling them would do nothing, and load a compiler to do it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The tensor itself for what works in place, else what the function gives."""
        kwargs = kwargs or {}
        if func.__name__.endswith("_") and not func.__name__.startswith("__"):
            return args[0] if args else kwargs["tensor"]
        if func is torch.eye:
            return torch.empty(args[0], args[-1], **kwargs)
        return func(*args, **kwargs)


def described_shapes(make: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> Shapes:
    """The tensors of a module with these arguments, by name; however large they are, none takes memory."""
    with torch.device("meta"), NeverFilled():
        return {name: tuple(tensor.shape) for name, tensor in make(**arguments).state_dict().items()}


def check_weights(path: Path, described: Shapes) -> None:
    """Raise unless a file of weights has these tensors; only its header is read."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"{path} is damaged or belongs to another model: {reason}") from error
    for name in sorted(found.keys() | described.keys()):
        if found.get(name) != described.get(name):
            raise ValueError(
                f"{path} is damaged or belongs to another model: {name[:100]} has shape {found.get(name)} there, "
                f"{described.get(name)} in the model"
            )


def read_labels(names: Any, num_classes: Any) -> tuple[str, ...]:
    """Names of the classes as a file gives them, one for each."""
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(name, str) for name in names):
        raise ValueError(f"labels must be {num_classes} names")
    return tuple(names)
