"""What is kept for the backward pass, for couplings and for traces: parts of one tensor, told from sizes alone.

Nothing here needs Triton.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.routing.ops.votes import KernelVotes


class Kind(NamedTuple):
    """Who shares a softmax: the types of a slot, all slots of a child, or (by type) those of one type."""

    by_child: bool
    by_type: bool

    def shape(self, votes: KernelVotes) -> tuple[int, int, int]:
        """Of the numbers of all softmaxes: (B, I or S N, J or 1)."""
        owners = votes.poses.shape[1] if self.by_child else votes.num_windows * votes.num_slots
        return votes.poses.shape[0], owners, votes.num_parents if self.by_type else 1


KINDS = (Kind(False, False), Kind(True, False), Kind(True, True))  # in the order of torchcaps.routing.competition


def kinds_of(competition: int, num_iterations: int, *, has_logits: bool) -> list[Kind]:
    """The softmaxes of every iteration.

    Without logits to start from the first couplings are equal shares of the types of a slot, under position competition
    as well.
    """
    kind = KINDS[competition]
    return [KINDS[0] if kind.by_type and not has_logits else kind, *[kind] * (num_iterations - 1)]


def working_type(poses: Tensor) -> torch.dtype:
    """The type in which kernels compute and keep their state."""
    return torch.float64 if poses.dtype == torch.float64 else torch.float32


def empty_state(poses: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """Room for parts of these shapes."""
    return poses.new_empty(sum(map(prod, shapes)), dtype=working_type(poses))


def split_state(state: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The parts of a state."""
    parts = state.contiguous().split([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def pair(number: float) -> tuple[float, float]:
    """Two numbers of 32 bits whose sum is a number to about 48 bits: Triton makes every float of Python a float32.

    Example:
        >>> high, low = pair(0.1)
        >>> abs(high + low - 0.1) < 1e-16 < abs(high - 0.1)
        True
    """
    high = float(np.float32(number))
    return high, float(np.float32(number - high))
