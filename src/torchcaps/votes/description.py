"""What a routing may ask of votes, and votes that exist already."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from torchcaps.checks import check_floating, check_like, check_mask, check_shape
from torchcaps.windows import Windows


class Votes(ABC):
    """What a routing algorithm needs to know about votes.

    Attributes:
        activations: (B, I) of the children, or None when they were not given.
        mask: (B, I), False = the child has no votes; None = all have.
        window_mask: (B, *positions), False = the parent position does not exist; None = all do.
        parent_mask: (B, J), False = this example has no parent of that type; None = it has all. Dense votes alone.
        windows: the sliding windows of a convolutional layer, or None when every parent sees every child.
        num_children: I. num_slots: children that one parent sees. num_parents: J, parent types per position.
        vote_size: D.
    """

    activations: Tensor | None
    mask: Tensor | None
    window_mask: Tensor | None = None
    parent_mask: Tensor | None = None
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

    def check_types(self) -> None:
        """Raise unless all numbers have one type, which may be another under autocast than without it."""
        if self.activations is not None:
            check_like("activations", self.activations, "votes", self.example)

    def _check_children(self) -> None:
        self.check_types()
        shape = (self.example.shape[0], self.num_children)
        if self.activations is not None:
            check_shape("activations", self.activations, shape, "(B, I)")
        if self.mask is not None:
            check_shape("mask", check_mask("mask", self.mask), shape, "(B, I)")
        if self.window_mask is not None:
            positions = (shape[0], *self.positions)
            check_shape("window_mask", check_mask("window_mask", self.window_mask), positions, "(B, *positions)")
        if self.parent_mask is not None:
            parents = (shape[0], self.num_parents)
            check_shape("parent_mask", check_mask("parent_mask", self.parent_mask), parents, "(B, J)")


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
            activations=narrowed(self.activations, start, length),
            mask=narrowed(self.mask, start, length),
        )

    def given(self, *, activations: Tensor | None, mask: Tensor | None) -> "TensorVotes":
        activations, mask = self._merge(activations, mask)
        return TensorVotes(self.votes, activations=activations, mask=mask)


def as_votes(votes: Votes | Tensor, *, activations: Tensor | None = None, mask: Tensor | None = None) -> Votes:
    """A description of `votes`, with activations and mask from the call put in."""
    if isinstance(votes, Votes):
        return votes.given(activations=activations, mask=mask)
    if isinstance(votes, Tensor):
        return TensorVotes(votes, activations=activations, mask=mask)
    raise TypeError(
        f"votes must be a tensor (B, I, J, D) or a description such as DenseVotes, got {type(votes).__name__}"
    )


def narrowed(tensor: Tensor | None, start: int, length: int) -> Tensor | None:
    """The examples from `start` on of a tensor that may be missing."""
    return None if tensor is None else tensor.narrow(0, start, length)
