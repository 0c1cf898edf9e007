r"""Votes, described and not yet formed.

A child i with pose u_i votes for the pose of every parent j it reaches: :math:`\hat u_{ij} = W_{ij} u_i`, or
:math:`V_{ij} = M_i W_{ij}` for matrix poses. A description holds the poses and the weights; `materialise()` forms
the votes (the reference backend does), kernels work from the description and never form them.

A pose is `rows` row vectors: one for a vector pose, P for a P x P matrix pose. That makes the two the same
computation, `pose_rows @ W`. Slot n of a window uses transformation n modulo the number of transformations, which
covers full weights (one per slot), weights shared over positions (one per type) and weights shared by all (one).
"""

from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, check_capsules, matrix_side
from torchcaps.checks import check_choice, check_floating, check_like, check_mask, check_shape
from torchcaps.windows import Windows, per_axis

POSES = ("vector", "matrix")
WEIGHTS = ("full", "shared", "factorised")

Weight = Tensor | tuple[Tensor, Tensor]


class Votes(ABC):
    """What a routing algorithm needs to know about votes.

    Attributes:
        activations: (B, I) of the children, or None when they were not given.
        mask: (B, I), False = the child has no votes; None = all have.
        window_mask: (B, *positions), False = the parent position does not exist; None = all do.
        windows: the sliding windows of a convolutional layer, or None when every parent sees every child.
        num_children: I. num_slots: children that one parent sees. num_parents: J, parent types per position.
        vote_size: D.
    """

    activations: Tensor | None
    mask: Tensor | None
    window_mask: Tensor | None = None
    windows: Windows | None = None
    num_children: int
    num_slots: int
    num_parents: int
    vote_size: int

    @property
    @abstractmethod
    def example(self) -> Tensor:
        """A tensor that has the batch size, dtype and device of the votes."""

    @property
    def weight_bytes(self) -> int:
        """What the transformations occupy."""
        return 0

    @abstractmethod
    def materialise(self) -> Tensor:
        """Form the votes; those of masked children are 0.

        Shapes:
            (B, I, J, D) for dense votes, (B, *positions, slots, J, D) for convolutional ones
        """

    @abstractmethod
    def narrow(self, start: int, length: int) -> "Votes":
        """The votes of `length` examples from `start` on."""

    @abstractmethod
    def given(self, *, activations: Tensor | None, mask: Tensor | None) -> "Votes":
        """The same votes with activations and mask from the call; giving either twice is an error."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Parent positions: () for dense votes, (OH, OW) for convolutional ones."""
        return self.windows.output if self.windows else ()

    @property
    def coupling_shape(self) -> tuple[int, ...]:
        """(B, I, J), or (B, *positions, slots, J)."""
        return (self.example.shape[0], *self.positions, self.num_slots, self.num_parents)

    def slots(self, per_child: Tensor) -> Tensor:
        """Values of children (B, I, ...) as seen in the windows: (B, *positions, slots, ...)."""
        return self.windows.gather(per_child) if self.windows else per_child

    def child_weights(self) -> Tensor:
        """Activations of the children, 0 for masked ones (padding may hold anything, NaN too): (B, I)."""
        assert self.activations is not None
        if self.mask is None:
            return self.activations
        return torch.where(self.mask, self.activations, torch.zeros_like(self.activations))

    def slot_mask(self) -> Tensor | None:
        """Which slots hold a child that votes there: (B, *positions, slots), or None for all."""
        slot_mask = None if self.mask is None else self.slots(self.mask)
        if self.window_mask is None:
            return slot_mask
        exists = self.window_mask.unsqueeze(-1)
        return exists.expand(self.coupling_shape[:-1]) if slot_mask is None else slot_mask & exists

    def _merge(self, activations: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Activations and mask of the description or of the call, never both."""
        if self.activations is not None and activations is not None:
            raise ValueError("activations are already part of the votes; leave them out of the call")
        if self.mask is not None and mask is not None:
            raise ValueError("the mask is already part of the votes; leave it out of the call")
        return (
            self.activations if activations is None else activations,
            self.mask if mask is None else mask,
        )

    def _check_children(self) -> None:
        shape = (self.example.shape[0], self.num_children)
        if self.activations is not None:
            check_shape("activations", self.activations, shape, "(B, I)")
            check_like("activations", self.activations, "votes", self.example)
        if self.mask is not None:
            check_shape("mask", check_mask("mask", self.mask), shape, "(B, I)")
        if self.window_mask is not None:
            positions = (shape[0], *self.positions)
            check_shape("window_mask", check_mask("window_mask", self.window_mask), positions, "(B, *positions)")


class TensorVotes(Votes):
    """Votes that exist already.

    Shapes:
        votes: (B, I, J, D)
    """

    def __init__(self, votes: Tensor, *, activations: Tensor | None = None, mask: Tensor | None = None) -> None:
        check_floating("votes", votes)
        if votes.dim() != 4 or 0 in votes.shape[1:]:
            raise ValueError(
                f"votes must have shape (B, I, J, D) with I, J, D of at least 1, got {tuple(votes.shape)}; "
                "a convolutional layer is described by ConvVotes"
            )
        self.votes, self.activations, self.mask = votes, activations, mask
        self.num_children, self.num_parents, self.vote_size = votes.shape[1:]
        self.num_slots = self.num_children
        self._check_children()

    @property
    def example(self) -> Tensor:
        return self.votes

    def materialise(self) -> Tensor:
        if self.mask is None:
            return self.votes
        return torch.where(self.mask[..., None, None], self.votes, torch.zeros_like(self.votes))

    def narrow(self, start: int, length: int) -> "TensorVotes":
        return TensorVotes(
            self.votes.narrow(0, start, length),
            activations=_narrow(self.activations, start, length),
            mask=_narrow(self.mask, start, length),
        )

    def given(self, *, activations: Tensor | None, mask: Tensor | None) -> "TensorVotes":
        activations, mask = self._merge(activations, mask)
        return TensorVotes(self.votes, activations=activations, mask=mask)


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
    ) -> None:
        self.poses, self.weight, self.rows = poses, weight, rows
        self.child_factor, self.bias, self.offset = child_factor, bias, offset
        self.activations, self.mask = activations, mask
        self.windows, self.window_mask = windows, window_mask
        self.num_children = poses.shape[1]
        self.num_slots = windows.num_slots if windows else self.num_children
        self.num_parents = weight.shape[1]
        self.vote_size = rows * weight.shape[3]
        check_like("weight", weight, "poses", poses)
        if child_factor is not None:
            check_like("child factor", child_factor, "poses", poses)
        if bias is not None:
            check_shape("bias", bias, (weight.shape[0], self.num_parents, self.vote_size), "one D-vector per W")
            check_like("bias", bias, "poses", poses)
        self._check_children()

    @property
    def example(self) -> Tensor:
        return self.poses

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
            _narrow(self.activations, start, length),
            _narrow(self.mask, start, length),
            _narrow(self.window_mask, start, length),
        )

    def given(self, *, activations: Tensor | None, mask: Tensor | None) -> "LinearVotes":
        if activations is None and mask is None:
            return self
        return self._with(self.poses, *self._merge(activations, mask), self.window_mask)

    def _with(
        self, poses: Tensor, activations: Tensor | None, mask: Tensor | None, window_mask: Tensor | None
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
        )


class DenseVotes(LinearVotes):
    """Every child votes for every parent.

    Args:
        children: Capsules with poses (B, I, K) and activations (B, I), or the poses alone.
        weight: full (I, J, K, D), shared (J, K, D), factorised the pair ((I, K, K'), (J, K', D)); matrix poses
            (I, J, P, P), (J, P, P), ((I, P, P), (J, P, P)).
        pose: "vector" (W u) or "matrix" (M W, a pose is P * P entries).
        weights: who owns a transformation: "full", "shared" or "factorised".
        bias: one D-vector per W: full (I, J, D), otherwise (J, D).
        mask: (B, I), False = padding.

    Example:
        >>> poses, weight = torch.randn(2, 6, 8), torch.randn(6, 3, 8, 16)
        >>> DenseVotes(poses, weight).materialise().shape
        torch.Size([2, 6, 3, 16])
    """

    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        pose: str = "vector",
        weights: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        poses, activations = check_capsules(children, num_axes=3)
        super().__init__(
            poses,
            **_transformation(weight, bias, pose, weights, poses.shape[-1], (poses.shape[1],), "I, "),
            activations=activations,
            mask=mask,
        )


class ConvVotes(LinearVotes):
    """Every child votes for the parents whose window it lies in; no padding, in one or two dimensions.

    Args:
        children: feature map of Capsules, poses (B, H, W, C, K) or (B, T, C, K), or the poses alone.
        weight: full (kh, kw, C, J, K, D), shared (J, K, D), factorised ((kh, kw, C, K, K'), (J, K', D)); one kernel
            axis less in one dimension, and P x P in place of K x D for matrix poses.
        kernel_size: one number or one per axis; may be left out where the weight shows it.
        stride: one number or one per axis.
        mask: (B, H, W) or (B, H, W, C), False = the child has no votes.
        window_mask: (B, OH, OW), False = the parent position does not exist, so that it takes no part in the
            competition for its children (windows that reach into padding, for example).
        pose, weights, bias: as in DenseVotes; the bias of full weights is (kh, kw, C, J, D).

    Example:
        >>> votes = ConvVotes(torch.randn(2, 14, 14, 4, 16), torch.randn(3, 3, 4, 5, 4, 4), pose="matrix", stride=2)
        >>> votes.materialise().shape
        torch.Size([2, 6, 6, 36, 5, 16])
    """

    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        kernel_size: int | tuple[int, ...] | None = None,
        stride: int | tuple[int, ...] = 1,
        pose: str = "vector",
        weights: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        window_mask: Tensor | None = None,
    ) -> None:
        poses, activations = _feature_map(children)
        axes, num_types = poses.dim() - 3, poses.shape[-2]
        if kernel_size is None and weights == "shared":
            raise ValueError("shared weights do not show the kernel size; give kernel_size")
        child_factor, parent_factor = _factors(weight, weights)
        owner = parent_factor if child_factor is None else child_factor
        kernel = tuple(owner.shape[:axes]) if kernel_size is None else per_axis("kernel_size", kernel_size, axes)
        windows = Windows(tuple(poses.shape[1:-2]), num_types, kernel, per_axis("stride", stride, axes))
        super().__init__(
            poses.flatten(1, -2),
            **_transformation(weight, bias, pose, weights, poses.shape[-1], (*kernel, num_types), "kernel..., C, "),
            activations=None if activations is None else activations.flatten(1),
            mask=_child_mask(mask, poses),
            windows=windows,
            window_mask=window_mask,
        )


class ClassVotes(LinearVotes):
    """All children of a feature map vote for all parents; the children of one type share their transformation.

    Coordinate addition puts ((row + 0.5) / H, (column + 0.5) / W) of the child into its vote: entries (0, P-1) and
    (1, P-1) of a matrix pose (flat 3 and 7 for 4 x 4), entries 0 and 1 of a vector pose.

    Args:
        children: feature map of Capsules, poses (B, H, W, C, K) or (B, T, C, K), or the poses alone.
        weight: full (C, J, K, D), shared (J, K, D), factorised ((C, K, K'), (J, K', D)).
        coordinates: add the coordinates.
        mask: (B, H, W) or (B, H, W, C), False = the child has no votes.
        pose, weights, bias: as in DenseVotes.

    Example:
        >>> ClassVotes(torch.randn(2, 4, 4, 8, 16), torch.randn(8, 5, 4, 4), pose="matrix").materialise().shape
        torch.Size([2, 128, 5, 16])
    """

    def __init__(
        self,
        children: Capsules | Tensor,
        weight: Weight,
        *,
        coordinates: bool = True,
        pose: str = "vector",
        weights: str = "full",
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        poses, activations = _feature_map(children)
        spatial, num_types = tuple(poses.shape[1:-2]), poses.shape[-2]
        transformation = _transformation(weight, bias, pose, weights, poses.shape[-1], (num_types,), "C, ")
        if coordinates:
            rows, row_size = transformation["rows"], transformation["weight"].shape[-1]
            entries = [row_size - 1, 2 * row_size - 1] if pose == "matrix" else [0, 1]
            offset = _coordinates(spatial, rows * row_size, entries, like=poses)
            transformation["offset"] = offset.repeat_interleave(num_types, dim=0)
        super().__init__(
            poses.flatten(1, -2),
            **transformation,
            activations=None if activations is None else activations.flatten(1),
            mask=_child_mask(mask, poses),
        )


def as_votes(votes: Votes | Tensor, *, activations: Tensor | None = None, mask: Tensor | None = None) -> Votes:
    """A description of `votes`, with activations and mask from the call put in."""
    if isinstance(votes, Votes):
        return votes.given(activations=activations, mask=mask)
    if isinstance(votes, Tensor):
        return TensorVotes(votes, activations=activations, mask=mask)
    raise TypeError(
        f"votes must be a tensor (B, I, J, D) or a description such as DenseVotes, got {type(votes).__name__}"
    )


def _narrow(tensor: Tensor | None, start: int, length: int) -> Tensor | None:
    return None if tensor is None else tensor.narrow(0, start, length)


def _feature_map(children: Capsules | Tensor) -> tuple[Tensor, Tensor | None]:
    poses, activations = check_capsules(children)
    if poses.dim() not in (4, 5):
        raise ValueError(
            f"a feature map of poses must have shape (B, H, W, C, K) or (B, T, C, K), got {tuple(poses.shape)}"
        )
    return poses, activations


def _child_mask(mask: Tensor | None, poses: Tensor) -> Tensor | None:
    """A mask of positions or of children of a feature map, as (B, I)."""
    if mask is None:
        return None
    check_mask("mask", mask)
    if mask.shape == poses.shape[:-2]:
        mask = mask.unsqueeze(-1).expand(poses.shape[:-1])
    return check_shape("mask", mask, tuple(poses.shape[:-1]), "of positions or of children").flatten(1)


def _factors(weight: Weight, weights: str) -> tuple[Tensor | None, Tensor]:
    """The factor per child, if there is one, and the weight per parent."""
    check_choice("weights", weights, WEIGHTS)
    child_factor = None
    if weights == "factorised":
        if not (isinstance(weight, tuple | list) and len(weight) == 2):
            raise TypeError("factorised weights are a pair (one factor per child, one per parent)")
        child_factor, weight = weight
        check_floating("child factor", child_factor)
    if not isinstance(weight, Tensor):
        raise TypeError(f"{weights} weights are one tensor, got {type(weight).__name__}")
    return child_factor, check_floating("weight", weight)


def _transformation(
    weight: Weight,
    bias: Tensor | None,
    pose: str,
    weights: str,
    pose_size: int,
    owners: tuple[int, ...],
    legend: str,
) -> dict:
    """Bring a weight to its canonical form (T, J, K, D / R); `owners` are the axes that full weights start with."""
    check_choice("pose", pose, POSES)
    rows = matrix_side(pose_size) if pose == "matrix" else 1
    inner = pose_size // rows
    child_factor, weight = _factors(weight, weights)
    if child_factor is not None:
        check_shape("child factor", child_factor, (*owners, inner, child_factor.shape[-1]), f"({legend}K, K')")
        inner, child_factor = child_factor.shape[-1], child_factor.flatten(0, -3)
    if weights != "full":
        owners, legend = (), ""
    if weight.dim() != len(owners) + 3:
        raise ValueError(f"{weights} weight must have shape ({legend}J, K, D), got {tuple(weight.shape)}")
    num_parents, outer = weight.shape[-3], weight.shape[-1]
    check_shape("weight", weight, (*owners, num_parents, inner, outer), f"({legend}J, K, D)")
    if pose == "matrix" and not rows == inner == outer:
        raise ValueError(f"matrix poses of {pose_size} entries need {rows} x {rows} weights, got {inner} x {outer}")
    if bias is not None:
        check_shape("bias", bias, (*owners, num_parents, rows * outer), f"({legend}J, D)")
    num_transforms = prod(owners)
    return {
        "rows": rows,
        "weight": weight.reshape(num_transforms, num_parents, inner, outer),
        "child_factor": child_factor,
        "bias": None if bias is None else bias.reshape(num_transforms, num_parents, rows * outer),
    }


def _coordinates(spatial: tuple[int, ...], vote_size: int, entries: list[int], *, like: Tensor) -> Tensor:
    """Scaled position of each place of the map, at the given entries of a vote: (positions, D)."""
    if entries[len(spatial) - 1] >= vote_size:
        raise ValueError(f"coordinate addition needs larger votes than {vote_size}; set coordinates=False")
    offset = like.new_zeros(*spatial, vote_size)
    for axis, (size, entry) in enumerate(zip(spatial, entries, strict=False)):
        scaled = (torch.arange(size, device=like.device, dtype=like.dtype) + 0.5) / size
        offset[..., entry] = scaled.view(*(-1 if a == axis else 1 for a in range(len(spatial)))).expand(spatial)
    return offset.flatten(0, -2)
