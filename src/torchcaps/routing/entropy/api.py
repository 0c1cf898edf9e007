"""Entropy-regularised routing: the public function."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.entropy.lowering import LOWERING
from torchcaps.routing.entropy.reference import entropy
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes

ENTROPY = Algorithm("entropy", entropy, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class EntropyOptions:
    """What only entropy routing knows: one alpha for each iteration."""

    alpha: tuple[float, ...]


def entropy_routing(
    votes: Votes | Tensor,
    *,
    num_iterations: int = 3,
    alpha: float | Sequence[float] = 0.1,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Routing as an optimisation problem with an entropy term (Wang and Liu 2018).

    Minimises :math:`F = -\sum_{ij} c_{ij} \langle \hat u_{ij}, s_j \rangle + \alpha \sum_{ij} c_{ij} \log c_{ij}`
    over couplings and unit vectors s by turns,

    .. math::
        c_i = softmax_j(b_i), \quad \hat s_j = \sum_i c_{ij} \hat u_{ij}, \quad s_j = \hat s_j / |\hat s_j|, \quad
        b_{ij} = \langle \hat u_{ij}, s_j \rangle / \alpha

    and returns :math:`w_j s_j` with :math:`w_j = |\hat s_j| / (1 + \max_k |\hat s_k|)`.

    Args:
        votes: tensor (B, I, J, D) or a description. The authors normalise the weights (Frobenius), which is an option
            of the layers.
        num_iterations: r >= 1.
        alpha: one number, or one per iteration; alpha[t] enters the couplings of iteration t + 1.
        amend, partial, competition, initial_logits, activations, mask, backend, return_trace: as in
            :func:`dynamic_routing`. The trace's objective is F; with one alpha it never rises, under position
            competition without `initial_logits` from the second iteration on.

    Example:
        >>> import torch
        >>> entropy_routing(torch.randn(2, 6, 3, 4), alpha=[0.3, 0.2, 0.1]).capsules.activations.shape
        torch.Size([2, 3])
    """
    check_count("num_iterations", num_iterations)
    alphas = tuple(alpha) if isinstance(alpha, Sequence) else (alpha,) * num_iterations
    if len(alphas) != num_iterations:
        raise ValueError(f"alpha needs one number for each of the {num_iterations} iterations, got {len(alphas)}")
    problem = pose_problem(
        ENTROPY,
        votes,
        EntropyOptions(alpha=tuple(check_positive("alpha", value) for value in alphas)),
        activations=activations,
        mask=mask,
        competition=competition,
        initial_logits=initial_logits,
        partial=partial,
        amend=amend,
        return_trace=return_trace,
    )
    return solve(problem, backend)
