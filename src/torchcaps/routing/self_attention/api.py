"""Self-attention routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.routing.backend import solve
from torchcaps.routing.learned import per_child
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.self_attention.lowering import LOWERING
from torchcaps.routing.self_attention.reference import self_attention
from torchcaps.votes import Votes, as_votes

SELF_ATTENTION = Algorithm("self_attention", self_attention, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class SelfAttentionOptions:
    """What only self-attention routing knows; bias (T, J), or None."""

    bias: Tensor | None


def self_attention_routing(
    votes: Votes | Tensor,
    *,
    bias: Tensor | None = None,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Self-attention routing without iterations (Mazzia, Salvetti, Chiaberge 2021).

    .. math::
        A_{ij} = \frac{1}{\sqrt D} \sum_k \langle V_{ij}, V_{kj} \rangle, \quad c_i = softmax_j(A_i) + b_i, \quad
        v_j = (1 - e^{-|s_j|}) \frac{s_j}{|s_j|}, \quad s_j = \sum_i c_{ij} V_{ij}

    Args:
        votes: tensor (B, I, J, D) or a description.
        bias: b, (J,), (I, J), or (C, J) for child types; couplings then no longer sum to 1.
        amend, partial, competition, activations, mask, backend, return_trace: as in :func:`dynamic_routing`. The trace
            has one step.
        initial_logits: added to A.

    Shapes:
        capsules: poses (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> self_attention_routing(torch.randn(2, 6, 3, 4)).coupling.sum(-1).allclose(torch.ones(2, 6))
        True
    """
    description = as_votes(votes, activations=activations, mask=mask)
    options = SelfAttentionOptions(bias=None if bias is None else per_child("bias", bias, description))
    problem = pose_problem(
        SELF_ATTENTION,
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
