"""Heinsen routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.heinsen.lowering import LOWERING
from torchcaps.routing.heinsen.reference import heinsen
from torchcaps.routing.learned import per_child
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes, as_votes

HEINSEN = Algorithm("heinsen", heinsen, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class HeinsenOptions:
    """What only Heinsen routing knows; betas (T, J)."""

    num_iterations: int
    beta_use: Tensor
    beta_ignore: Tensor
    eps_var: float
    detach_couplings: bool


def heinsen_routing(
    votes: Votes | Tensor,
    activations: Tensor | None = None,
    *,
    beta_use: Tensor | float,
    beta_ignore: Tensor | float,
    num_iterations: int = 3,
    eps_var: float = 1e-6,
    detach_couplings: bool = False,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""EM whose activations weigh what is used of children against what is ignored (Heinsen 2019).

    .. math::
        s_j = \sum_i (\beta^{use}_{ij} a_i c_{ij} - \beta^{ign}_{ij} a_i (1 - c_{ij})), \quad a_j = sigmoid(s_j), \quad
        c_i = softmax_j(\ln a_j + \ln N(V_{ij}; \mu_j, \sigma_j^2))

    with the mean and variance of the votes weighted by what is used of them, from uniform couplings.

    Args:
        votes: tensor (B, I, J, D) or a description.
        activations: a_i (B, I), when the votes do not carry them.
        beta_use, beta_ignore: numbers, (J,), (I, J), or (C, J) for child types.
        num_iterations: at least 1.
        eps_var: added to every variance.
        detach_couplings: couplings are constants for the gradient.
        competition, initial_logits, mask, backend, return_trace: as in :func:`dynamic_routing`. The trace's objective
            is the negative log-likelihood; nothing promises that it falls.

    Shapes:
        capsules: poses mu (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> result = heinsen_routing(torch.randn(2, 6, 3, 4), torch.rand(2, 6), beta_use=1.0, beta_ignore=1.0)
        >>> result.coupling.sum(-1).allclose(torch.ones(2, 6))
        True
    """
    description = as_votes(votes, activations=activations, mask=mask)
    if description.activations is None:
        raise ValueError("Heinsen routing weighs children by their activations; give activations (B, I)")
    options = HeinsenOptions(
        num_iterations=check_count("num_iterations", num_iterations),
        beta_use=per_child("beta_use", beta_use, description),
        beta_ignore=per_child("beta_ignore", beta_ignore, description),
        eps_var=check_positive("eps_var", eps_var),
        detach_couplings=detach_couplings,
    )
    problem = pose_problem(
        HEINSEN, description, options, competition=competition, initial_logits=initial_logits, return_trace=return_trace
    )
    return solve(problem, backend)
