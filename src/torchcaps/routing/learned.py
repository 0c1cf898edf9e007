"""What a routing learns, brought to the shape its formulas have: one number per parent, or per child and parent."""

import torch
from torch import Tensor

from torchcaps.checks import check_like
from torchcaps.precision import solved_type
from torchcaps.votes import Votes


def per_parent(name: str, values: Tensor | float, votes: Votes) -> Tensor:
    """A number, or one per parent type, as (J,)."""
    values = _like_votes(name, values, votes)
    if values.shape not in ((), (votes.num_parents,)):
        raise ValueError(
            f"{name} must be a number or one per parent type, (J,) = ({votes.num_parents},), got {tuple(values.shape)}"
        )
    return values.expand(votes.num_parents)


def per_child(name: str, values: Tensor | float, votes: Votes) -> Tensor:
    """A number, one per parent type (J,), or one per child and parent (I, J), as (T, J) with T dividing the slots.

    Children that share their transformation may share their number, too: (C, J) for C types, one after the other in
    every place of a window.
    """
    values = _like_votes(name, values, votes)
    if values.dim() < 2:
        return per_parent(name, values, votes).unsqueeze(0)
    if values.dim() != 2 or values.shape[1] != votes.num_parents or votes.num_slots % max(1, values.shape[0]):
        raise ValueError(
            f"{name} must be a number, one per parent type, or one per child (or child type) and parent type, "
            f"(I, J) = {(votes.num_slots, votes.num_parents)}, got {tuple(values.shape)}"
        )
    return values


def of_slots(values: Tensor, num_slots: int) -> Tensor:
    """Numbers of children or child types for every slot: (T, J) -> (slots, J)."""
    return values.repeat(num_slots // values.shape[0], 1)


def _like_votes(name: str, values: Tensor | float, votes: Votes) -> Tensor:
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, dtype=solved_type(votes.example), device=votes.example.device)
    return check_like(name, values, "votes", votes.example)
