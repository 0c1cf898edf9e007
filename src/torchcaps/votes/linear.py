"""Poses times weights, the form in which kernels read votes."""

import torch
from torch import Tensor

from torchcaps.checks import check_like, check_shape
from torchcaps.votes.description import Votes, narrowed
from torchcaps.windows import Windows


class LinearVotes(Votes):
    """Poses times weights: the canonical form of dense, convolutional and class votes, and what kernels read.

    Shapes:
        poses: (B, I, R * K), R rows of K entries
        weight: (T, J, K, D / R); slot n uses transformation n modulo T
        child_factor: (T', K', K), applied to the poses before `weight` (factorised weights), or None
        bias: (T, J, D), or None
        offset: (slots, D), added to the votes of a slot for every parent, or None
    """

    def __init__(
        self,
        poses: Tensor,
        weight: Tensor,
        *,
        rows: int = 1,
        child_factor: Tensor | None = None,
        bias: Tensor | None = None,
        offset: Tensor | None = None,
        activations: Tensor | None = None,
        mask: Tensor | None = None,
        windows: Windows | None = None,
        window_mask: Tensor | None = None,
        parent_mask: Tensor | None = None,
    ) -> None:
        self.poses, self.weight, self.rows = poses, weight, rows
        self.child_factor, self.bias, self.offset = child_factor, bias, offset
        self.activations, self.mask = activations, mask
        self.windows, self.window_mask, self.parent_mask = windows, window_mask, parent_mask
        self.num_children = poses.shape[1]
        self.num_slots = windows.num_slots if windows else self.num_children
        self.num_parents = weight.shape[1]
        self.vote_size = rows * weight.shape[3]
        if bias is not None:
            check_shape("bias", bias, (weight.shape[0], self.num_parents, self.vote_size), "one D-vector per W")
        self._check_children()

    @property
    def example(self) -> Tensor:
        return self.poses

    def check_types(self) -> None:
        super().check_types()
        parts = {"weight": self.weight, "child factor": self.child_factor, "bias": self.bias, "offset": self.offset}
        for name, part in parts.items():
            if part is not None:
                check_like(name, part, "poses", self.poses)

    @property
    def weight_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size()

    def materialise(self) -> Tensor:
        poses = self.poses
        if self.mask is not None:  # padding may hold anything, NaN too
            poses = torch.where(self.mask.unsqueeze(-1), poses, torch.zeros_like(poses))
        rows_BNRK = self.slots(poses).unflatten(-1, (self.rows, -1))
        # slot n = p T + t uses transformation t, so the slots are seen as (N / T, T)
        if (factor := self.child_factor) is not None:
            rows_BPTRK = rows_BNRK.unflatten(-3, (-1, factor.shape[0]))
            rows_BNRK = torch.einsum("...ptrk,tkl->...ptrl", rows_BPTRK, factor).flatten(-4, -3)
        rows_BPTRK = rows_BNRK.unflatten(-3, (-1, self.weight.shape[0]))
        votes_BPTJRE = torch.einsum("...ptrk,tjke->...ptjre", rows_BPTRK, self.weight)
        votes_BNJD = votes_BPTJRE.flatten(-5, -4).flatten(-2)
        if self.bias is not None:
            votes_BNJD = votes_BNJD + self.bias.repeat(self.num_slots // len(self.bias), 1, 1)
        if self.offset is not None:
            votes_BNJD = votes_BNJD + self.offset.unsqueeze(1)
        slot_mask = self.slot_mask()
        if slot_mask is not None and (self.bias is not None or self.offset is not None):
            votes_BNJD = torch.where(slot_mask[..., None, None], votes_BNJD, torch.zeros_like(votes_BNJD))
        return votes_BNJD

    def narrow(self, start: int, length: int) -> "LinearVotes":
        return self._with(
            self.poses.narrow(0, start, length),
            narrowed(self.activations, start, length),
            narrowed(self.mask, start, length),
            narrowed(self.window_mask, start, length),
            narrowed(self.parent_mask, start, length),
        )

    def given(self, *, activations: Tensor | None, mask: Tensor | None) -> "LinearVotes":
        if activations is None and mask is None:
            return self
        return self._with(self.poses, *self._merge(activations, mask), self.window_mask, self.parent_mask)

    def _with(
        self,
        poses: Tensor,
        activations: Tensor | None,
        mask: Tensor | None,
        window_mask: Tensor | None,
        parent_mask: Tensor | None,
    ) -> "LinearVotes":
        """The same transformation of other children."""
        return LinearVotes(
            poses,
            self.weight,
            rows=self.rows,
            child_factor=self.child_factor,
            bias=self.bias,
            offset=self.offset,
            activations=activations,
            mask=mask,
            windows=self.windows,
            window_mask=window_mask,
            parent_mask=parent_mask,
        )
