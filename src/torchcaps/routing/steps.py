"""The two contractions every routing is made of. Both give an example the same bits in any batch."""

import torch
from torch import Tensor

LEAST_MASS = 1e-8  # of a parent, where votes are divided by it


def weighted_sum(coupling: Tensor, votes: Tensor) -> Tensor:
    """Sum over children of c_ij v_ij: (..., I, J), (..., I, J, D) -> (..., J, D)."""
    return torch.einsum("...ij,...ijd->...jd", coupling, votes)


def agreement(votes: Tensor, poses: Tensor) -> Tensor:
    """<v_ij, p_j>: (..., I, J, D), (..., J, D) -> (..., I, J)."""
    return (votes * poses.unsqueeze(-3)).sum(-1)  # an einsum would round differently in another batch


def per_example(values: Tensor) -> Tensor:
    """Sum of everything but the batch: (B, ...) -> (B,)."""
    return values.flatten(1).sum(1)
