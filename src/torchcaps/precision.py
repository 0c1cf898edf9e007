"""Mixed precision: under autocast 16-bit numbers are routed as float32, whoever solves the problem.

Routing repeats sums of many children and exponentials of their agreement: in 16 bits it loses its digits.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def is_mixed(device_type: str) -> bool:
    """Whether autocast is on for a type of device.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_mixed("cpu")
        True
    """
    has_it = device_type in ("cpu", "cuda") or torch.amp.is_autocast_available(device_type)  # compiled from 2.9 on
    return has_it and torch.is_autocast_enabled(device_type)


def without_autocast(device_type: str) -> AbstractContextManager:
    """A block in which numbers keep their digits."""
    return torch.autocast(device_type, enabled=False) if is_mixed(device_type) else nullcontext()


def solved_type(tensor: Tensor) -> torch.dtype:
    """The type in which a routing of such a tensor is solved: its own, but float32 for 16 bits under autocast."""
    return torch.float32 if tensor.dtype in HALVES and is_mixed(tensor.device.type) else tensor.dtype
