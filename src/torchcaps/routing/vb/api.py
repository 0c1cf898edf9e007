"""Variational Bayes routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_count, check_positive
from torchcaps.clustering.posterior import Prior
from torchcaps.routing.backend import solve
from torchcaps.routing.learned import per_parent
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.vb.lowering import LOWERING
from torchcaps.routing.vb.reference import vb
from torchcaps.votes import Votes, as_votes

VB = Algorithm("vb", vb, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class VBOptions:
    """What only variational routing knows: the prior, and betas (J,)."""

    num_iterations: int
    beta_a: Tensor
    beta_u: Tensor
    prior: Prior
    detach_couplings: bool


def vb_routing(
    votes: Votes | Tensor,
    activations: Tensor | None = None,
    *,
    beta_a: Tensor | float,
    beta_u: Tensor | float,
    num_iterations: int = 3,
    alpha0: float = 1.0,
    kappa0: float = 1.0,
    psi0: float = 1.0,
    nu0: float | None = None,
    detach_couplings: bool = False,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Routing as a mixture of Gaussians with priors, by variational Bayes (Ribeiro, Leontidis, Kollias 2020).

    With :math:`m_j = \sum_i R_{ij} a_i`, mean :math:`\mu_j` and spread :math:`S_j` of the votes the posterior is

    .. math::
        M_j = \frac{m_j \mu_j}{\kappa_0 + m_j}, \quad
        P_j = \psi_0 + m_j S_j + \frac{\kappa_0 m_j}{\kappa_0 + m_j} \mu_j^2, \quad
        \nu_j = \nu_0 + m_j, \quad \alpha_j = \alpha_0 + m_j

    and couplings are the softmax of the expected log-densities under it. A parent is active if its share is large and
    its entropy low. Unlike EM a parent of few votes cannot shrink to a point: see the README beside this file.

    Args:
        votes: tensor (B, I, J, D) or a description.
        activations: a_i (B, I), when the votes do not carry them.
        beta_a, beta_u: numbers or (J,), one per parent type; the logit of the activation has their difference.
        num_iterations: updates of the posterior, at least 1.
        alpha0: prior of the mixing weights.
        kappa0: votes that the prior mean, 0, counts for.
        psi0: prior scale of each entry.
        nu0: prior degrees of freedom, more than D - 1; D + 1 unless given.
        detach_couplings: R is a constant for the gradient, and only the last update carries any.
        competition: "window": each position has mixing weights of its own, which is exact variational Bayes; "global"
            and "position" share them among all parents, and among the positions of a type.
        initial_logits, mask, backend, return_trace: as in :func:`dynamic_routing`. The trace's objective is the
            negative evidence bound up to a constant; under "window" it never increases.

    Shapes:
        capsules: poses M (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> result = vb_routing(torch.randn(2, 6, 3, 16), torch.rand(2, 6), beta_a=0.0, beta_u=0.0)
        >>> result.coupling.sum(-1).allclose(torch.ones(2, 6))
        True
    """
    description = as_votes(votes, activations=activations, mask=mask)
    if description.activations is None:
        raise ValueError("VB routing weighs children by their activations; give activations (B, I), ones if unknown")
    size = description.vote_size
    if nu0 is not None and check_positive("nu0", nu0) <= size - 1:
        raise ValueError(f"nu0 must be more than D - 1 = {size - 1} for votes of {size} entries, got {nu0}")
    options = VBOptions(
        num_iterations=check_count("num_iterations", num_iterations),
        beta_a=per_parent("beta_a", beta_a, description),
        beta_u=per_parent("beta_u", beta_u, description),
        prior=Prior(
            alpha=check_positive("alpha0", alpha0),
            kappa=check_positive("kappa0", kappa0),
            psi=check_positive("psi0", psi0),
            nu=float(size + 1 if nu0 is None else nu0),
        ),
        detach_couplings=detach_couplings,
    )
    problem = pose_problem(
        VB, description, options, competition=competition, initial_logits=initial_logits, return_trace=return_trace
    )
    return solve(problem, backend)
