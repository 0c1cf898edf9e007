"""From a description of votes to the tensors that kernels read, on the device of the votes."""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.tables import children_of, transforms_of
from torchcaps.routing.problem import Problem
from torchcaps.votes import LinearVotes

LARGEST_NUMBER = 2**31 - 1  # of children: tables hold int32


class KernelVotes(NamedTuple):
    """Votes as kernels read them; see csrc/votes.h.

    Shapes:
        poses: (B, I, R * K). weight: (T, J, K, D / R). bias: (T, J, D). activations: (B, I). offset: (N, D)
        child: (S, N) int32, the child in each slot of each window; None: one window, slot n holds child n
        transform: (N,) int32, the transformation of each slot; None: slot n uses transformation n
        child_mask: (B, I). window_mask: (B, S)
    """

    poses: Tensor
    weight: Tensor
    bias: Tensor | None
    activations: Tensor | None
    offset: Tensor | None
    child: Tensor | None
    transform: Tensor | None
    child_mask: Tensor | None
    window_mask: Tensor | None
    rows: int

    @property
    def num_windows(self) -> int:
        return 1 if self.child is None else self.child.shape[0]

    @property
    def num_slots(self) -> int:
        return self.poses.shape[1] if self.child is None else self.child.shape[1]

    @property
    def num_parents(self) -> int:
        return self.weight.shape[1]

    @property
    def vote_size(self) -> int:
        return self.rows * self.weight.shape[3]

    @property
    def parent_shape(self) -> tuple[int, int, int]:
        """(B, S, J)."""
        return self.poses.shape[0], self.num_windows, self.num_parents

    @property
    def coupling_shape(self) -> tuple[int, int, int, int]:
        """(B, S, N, J)."""
        return self.poses.shape[0], self.num_windows, self.num_slots, self.num_parents

    def contiguous(self) -> "KernelVotes":
        """The same votes without strides."""
        tensors: dict[str, Any] = {
            name: value.contiguous() for name, value in self._asdict().items() if isinstance(value, Tensor)
        }
        return self._replace(**tensors)


def why_not_lower(problem: Problem) -> str | None:
    """Why no kernel can read the votes of a problem, from metadata only; None if one can."""
    votes = problem.votes
    if not isinstance(votes, LinearVotes):
        return "the votes exist already, so there is nothing to fuse; describe them (DenseVotes, ConvVotes, ClassVotes)"
    if votes.parent_mask is not None:
        return "the kernels give every example all parents, and these votes have a parent_mask"
    if 0 in votes.poses.shape:
        return f"there is nothing to route: poses have shape {tuple(votes.poses.shape)}"
    if (num_children := _num_numbered(problem, votes)) > LARGEST_NUMBER:
        return f"the kernels number children with 32 bits: they take {LARGEST_NUMBER:,} of them, not {num_children:,}"
    return None


def _num_numbered(problem: Problem, votes: LinearVotes) -> int:
    """Children of an example as kernels number them: with a factor of its own each slot of a window is one."""
    if votes.windows is None or votes.child_factor is None or windows_compete(problem):
        return votes.num_children
    return prod(votes.positions) * votes.num_slots


def lower(votes: LinearVotes, *, windows_compete: bool = False) -> KernelVotes:
    """The tensors of `votes`, differentiable with respect to poses, weights, bias and activations.

    Factorised weights become shared ones: the factor of the child is applied to the poses of each slot, which is
    then a child of its own. Where the windows compete for a child it must stay one, and both factors are multiplied.
    """
    poses, activations, mask, child = votes.poses, votes.activations, votes.mask, None
    weight, bias, factor = votes.weight, votes.bias, votes.child_factor
    if votes.windows is not None:
        child = children_of(votes.windows, poses.device)
    if factor is not None and windows_compete:
        weight = torch.einsum("tkl,ojle->tjke", factor, weight)
        bias = None if bias is None else bias.expand(len(weight), -1, -1)
    elif factor is not None:
        if mask is not None:  # padding may hold anything, NaN too
            poses = torch.where(mask.unsqueeze(-1), poses, torch.zeros_like(poses))
        rows_BPTRK = votes.slots(poses).unflatten(-1, (votes.rows, -1)).unflatten(-3, (-1, factor.shape[0]))
        rows_BNRK = torch.einsum("...ptrk,tkl->...ptrl", rows_BPTRK, factor).flatten(-4, -3)
        poses = rows_BNRK.flatten(-2).flatten(1, -2)
        if child is not None:
            child = torch.arange(child.numel(), dtype=torch.int32, device=poses.device).view_as(child)
            activations = None if activations is None else votes.slots(activations).flatten(1)
            mask = None if mask is None else votes.slots(mask).flatten(1)
    transform = None
    if (num_transforms := weight.shape[0]) != votes.num_slots:
        transform = transforms_of(votes.num_slots, num_transforms, poses.device)
    return KernelVotes(
        poses=poses,
        weight=weight,
        bias=bias,
        activations=activations,
        offset=votes.offset,
        child=child,
        transform=transform,
        child_mask=mask,
        window_mask=None if votes.window_mask is None else votes.window_mask.flatten(1),
        rows=votes.rows,
    )


def lower_logits(problem: Problem, votes: KernelVotes) -> Tensor | None:
    """The logits at the start, (B, S, N, J), or None for zeros."""
    return None if problem.initial_logits is None else problem.initial_logits.reshape(votes.coupling_shape)


def competition_number(problem: Problem) -> int:
    """Index into KINDS; votes without windows compete in one window."""
    return KINDS.index("window" if problem.votes.windows is None else problem.competition)


def windows_compete(problem: Problem) -> bool:
    """Whether a child is shared among the windows that see it."""
    return problem.votes.windows is not None and problem.competition != "window"


def needs_state(values: Iterable[Any]) -> bool:
    """Whether a backward pass may follow on these arguments."""
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)
