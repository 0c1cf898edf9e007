"""Numbers of children and transformations that kernels look up: made once for each kind of layer and GPU."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from torchcaps.routing.ops.bodies import interprets
from torchcaps.windows import Windows


def children_of(windows: Windows, device: torch.device) -> Tensor:
    """The child in each slot of each window: (S, N) int32."""
    return (_kept_children if may_keep(device) else _children)(windows, device)


def transforms_of(num_slots: int, num_transforms: int, device: torch.device) -> Tensor:
    """The transformation of each slot: (N,) int32."""
    return (_kept_transforms if may_keep(device) else _transforms)(num_slots, num_transforms, device)


def may_keep(device: torch.device) -> bool:
    """Whether what is made now is good for other calls.

    A compiler and modes that look at every operator make tensors of their own, and a graph that is being captured fills
    its tensors when it is replayed. On the CPU there is nothing to wait for, and memory is kept for others.
    """
    if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
        return False
    return interprets() if device.type != "cuda" else not torch.cuda.is_current_stream_capturing()


def _children(windows: Windows, device: torch.device) -> Tensor:
    return windows.children(device).to(torch.int32)


def _transforms(num_slots: int, num_transforms: int, device: torch.device) -> Tensor:
    return torch.arange(num_slots, dtype=torch.int32, device=device) % num_transforms


# Copied from the CPU, so that they are complete for every stream; usable in backward passes whoever asks first.
@lru_cache(maxsize=128)
def _kept_children(windows: Windows, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _children(windows, torch.device("cpu")).to(device)


@lru_cache(maxsize=128)
def _kept_transforms(num_slots: int, num_transforms: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _transforms(num_slots, num_transforms, torch.device("cpu")).to(device)
