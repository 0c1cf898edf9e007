"""Attention routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_count, check_like, check_positive, check_shape
from torchcaps.routing.attention.lowering import LOWERING
from torchcaps.routing.attention.reference import attention
from torchcaps.routing.backend import solve
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes, as_votes

ATTENTION = Algorithm("attention", attention, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """What only attention routing knows; scale and shift (D,) of the LayerNorm."""

    num_iterations: int
    squash_k: float
    eps: float
    scale: Tensor | None
    shift: Tensor | None


def attention_routing(
    votes: Votes | Tensor,
    *,
    num_iterations: int = 3,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    eps: float = 1e-5,
    squash_k: float = 1.0,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Inverted dot-product attention (Tsai, Srivastava, Goh, Salakhutdinov 2020).

    .. math::
        s_j = \sum_i c_{ij} V_{ij}, \quad p_j = LayerNorm(s_j), \quad
        c_i = softmax_j(\langle V_{ij}, p_j \rangle / \sqrt D)

    from uniform couplings, repeated `num_iterations` times. Poses are the p; since LayerNorm makes them equally long,
    the activation is the length of the squashed last sum.

    Args:
        votes: tensor (B, I, J, D) or a description.
        num_iterations: r; with r = 1 the couplings stay uniform.
        scale, shift: (D,) of the LayerNorm; without them 1 and 0.
        eps: added to the variance of the LayerNorm.
        squash_k: k of the squash behind the activation.
        amend, partial, competition, initial_logits, activations, mask, backend, return_trace: as in
            :func:`dynamic_routing`. The trace's objective is minus the log-partition of the next couplings; nothing
            promises that it falls.

    Shapes:
        capsules: poses (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> attention_routing(torch.randn(2, 6, 3, 4)).capsules.poses.mean(-1).abs().max() < 1e-6
        tensor(True)
    """
    description = as_votes(votes, activations=activations, mask=mask)
    for name, values in (("scale", scale), ("shift", shift)):
        if values is not None:
            check_like(name, check_shape(name, values, (description.vote_size,), "(D,)"), "votes", description.example)
    options = AttentionOptions(
        num_iterations=check_count("num_iterations", num_iterations),
        squash_k=check_positive("squash_k", squash_k),
        eps=check_positive("eps", eps),
        scale=scale,
        shift=shift,
    )
    problem = pose_problem(
        ATTENTION,
        votes,
        options,
        activations=activations,
        mask=mask,
        competition=competition,
        initial_logits=initial_logits,
        partial=partial,
        amend=amend,
        return_trace=return_trace,
    )
    return solve(problem, backend)
