"""One clear sentence for each thing a caller can get wrong: what was expected, what came, what to do."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else raise with the nearest choice."""
    choices = tuple(choices)
    if value in choices:
        return str(value)
    near = get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}{hint}")


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Return `value` if it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer of at least {least}, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def check_positive(name: str, value: object) -> float:
    """Return `value` if it is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a positive number, got {value!r} ({type(value).__name__})")
    if not 0 < value < math.inf:  # NaN fails too; math.isfinite would stop a compiler
        raise ValueError(f"{name} must be a positive finite number, got {value}")
    return float(value)


def check_floating(name: str, tensor: "torch.Tensor") -> "torch.Tensor":
    """Return `tensor` if it is a floating-point tensor."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; convert it with .float()")
    return tensor


def check_shape(name: str, tensor: "torch.Tensor", shape: tuple[int, ...], legend: str) -> "torch.Tensor":
    """Return `tensor` if it has exactly `shape`; `legend` names the axes, such as "(B, I, J)"."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {legend} = {tuple(shape)}, got {tuple(tensor.shape)}")
    return tensor


def check_like(name: str, tensor: "torch.Tensor", other_name: str, other: "torch.Tensor") -> "torch.Tensor":
    """Return `tensor` if it has the dtype and device of `other`; under autocast 16 bits count as float32."""
    from torchcaps.precision import solved_type

    if tensor.dtype != other.dtype and solved_type(tensor) != solved_type(other):
        raise TypeError(
            f"{name} has dtype {tensor.dtype} but {other_name} has {other.dtype}; convert one of them with .to(dtype)"
        )
    if tensor.device != other.device:
        raise ValueError(
            f"{name} is on {tensor.device} but {other_name} is on {other.device}; move one of them with .to(device)"
        )
    return tensor


def check_mask(name: str, mask: "torch.Tensor") -> "torch.Tensor":
    """Return `mask` if it is a boolean tensor."""
    import torch

    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"{name} must be a boolean tensor (True = takes part), got {came}; convert it with .bool()")
    return mask
