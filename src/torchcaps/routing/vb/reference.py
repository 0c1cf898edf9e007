"""Variational Bayes routing, line by line as in the mathematics."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.routing.em.common import of_existing
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import LEAST_MASS, weighted_sum


class Posterior(NamedTuple):
    """What is believed of the parents after an update: (B, ..., J), `mean` and `scale` (B, ..., J, D).

    Attributes:
        mean: M, of the Gaussian means.
        scale: P, of the precisions.
        concentration: alpha, of the mixing weights.
        strength: kappa, of the means.
        freedom: nu, of the precisions.
        log_share: E ln pi.
        log_precision: E ln |Lambda|.
    """

    mean: Tensor
    scale: Tensor
    concentration: Tensor
    strength: Tensor
    freedom: Tensor
    log_share: Tensor
    log_precision: Tensor


def vb(problem: Problem) -> RoutingResult:
    """Solve a variational routing problem in eager torch."""
    options, votes, competition = problem.options, problem.votes, problem.compete()
    votes_BIJD = votes.materialise()
    activations_BI = votes.child_weights()
    activations_BI1 = votes.slots(activations_BI).unsqueeze(-1)
    coupling_BIJ, trace = competition.first(problem.initial_logits), []
    for iteration in range(options.num_iterations):
        posterior = update(problem, votes_BIJD, coupling_BIJ * activations_BI1)
        logit_BJ = activation_logit(options, posterior)
        last = iteration + 1 == options.num_iterations
        if last and not problem.return_trace:
            break
        logits_BIJ = log_responsibility(votes_BIJD, posterior)
        if problem.return_trace:
            evidence_B = competition.log_partition(logits_BIJ, activations_BI)
            objective_B = divergence(problem, posterior) - evidence_B
            step = coupling_BIJ, posterior.mean, of_existing(logit_BJ.sigmoid(), votes.window_mask), objective_B
            trace.append(TraceStep(*(value.detach() for value in step)))
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ.detach() if options.detach_couplings else logits_BIJ)
    capsules = Capsules(posterior.mean, of_existing(logit_BJ.sigmoid(), votes.window_mask))
    trace = tuple(trace) if problem.return_trace else None
    return RoutingResult(capsules, coupling_BIJ.detach(), trace, logits=logit_BJ)


def update(problem: Problem, votes_BIJD: Tensor, weighted_BIJ: Tensor) -> Posterior:
    """The posterior of the parents, given who voted for them."""
    options, size = problem.options, votes_BIJD.shape[-1]
    mass_BJ = weighted_BIJ.sum(-2)
    share_BIJ = weighted_BIJ / mass_BJ.clamp_min(LEAST_MASS).unsqueeze(-2)
    mu_BJD = weighted_sum(share_BIJ, votes_BIJD)
    spread_BJD = weighted_sum(share_BIJ, (votes_BIJD - mu_BJD.unsqueeze(-3)).square())
    concentration_BJ = options.alpha0 + mass_BJ
    strength_BJ = options.kappa0 + mass_BJ
    freedom_BJ = options.nu0 + mass_BJ
    m_BJ1, kappa_BJ1 = mass_BJ.unsqueeze(-1), strength_BJ.unsqueeze(-1)
    mean_BJD = (m_BJ1 * mu_BJD + options.kappa0 * options.m0) / kappa_BJ1
    scale_BJD = options.psi0 + m_BJ1 * spread_BJD + options.kappa0 * m_BJ1 / kappa_BJ1 * (mu_BJD - options.m0).square()
    entries_D = torch.arange(size, device=mass_BJ.device, dtype=mass_BJ.dtype)
    log_precision_BJ = (
        ((freedom_BJ.unsqueeze(-1) - entries_D) / 2).digamma().sum(-1) + size * math.log(2) - scale_BJD.log().sum(-1)
    )
    log_share_BJ = concentration_BJ.digamma() - total(problem, concentration_BJ).digamma()
    return Posterior(mean_BJD, scale_BJD, concentration_BJ, strength_BJ, freedom_BJ, log_share_BJ, log_precision_BJ)


def total(problem: Problem, concentration: Tensor) -> Tensor:
    """The sum of alpha over the parents that share one vector of mixing weights, for each of them.

    These are the types of a position; under "global" competition all parents of the layer, under "position" the
    positions of a type.
    """
    there = of_existing(concentration, problem.votes.window_mask)
    if problem.votes.windows is None or problem.competition == "window":
        return there.sum(-1, keepdim=True).clamp_min(problem.options.alpha0)
    axes = tuple(range(1, there.dim() if problem.competition == "global" else there.dim() - 1))
    return there.sum(axes, keepdim=True).clamp_min(problem.options.alpha0)


def log_responsibility(votes_BIJD: Tensor, posterior: Posterior) -> Tensor:
    """ln rho_ij, up to what all parents have in common: (B, ..., I, J)."""
    size = votes_BIJD.shape[-1]
    deviation_BIJD = (votes_BIJD - posterior.mean.unsqueeze(-3)).square()
    distance_BIJ = (deviation_BIJD / posterior.scale.unsqueeze(-3)).sum(-1)
    prior_BJ = posterior.log_share + 0.5 * posterior.log_precision - 0.5 * size / posterior.strength
    return prior_BJ.unsqueeze(-2) - 0.5 * posterior.freedom.unsqueeze(-2) * distance_BIJ


def activation_logit(options, posterior: Posterior) -> Tensor:
    """x of a_j = sigmoid(x): a parent is active if its share is large and its entropy low, (B, ..., J)."""
    size = posterior.mean.shape[-1]
    entropy_BJ = 0.5 * size * math.log(2 * math.pi * math.e) - 0.5 * posterior.log_precision
    return options.beta_a - options.beta_u - posterior.log_share.exp() * entropy_BJ


def divergence(problem: Problem, posterior: Posterior) -> Tensor:
    """How far the posterior is from the prior, up to constants: (B,).

    With it -sum_i a_i ln sum_j rho_ij becomes the negative evidence bound, which no step raises under window
    competition. The entries of a vote are taken to share their degrees of freedom, as in scikit-learn's mixtures.
    """
    options, size = problem.options, posterior.mean.shape[-1]
    mask = problem.votes.window_mask
    entries_D = torch.arange(size, device=posterior.mean.device, dtype=posterior.mean.dtype)

    def log_wishart(freedom: Tensor, log_scale: Tensor) -> Tensor:
        """Minus the logarithm of the normaliser of a Wishart distribution whose inverse scale has this logarithm."""
        half = (freedom.unsqueeze(-1) - entries_D) / 2
        return 0.5 * freedom * log_scale - 0.5 * size * math.log(2) * freedom - half.lgamma().sum(-1)

    nu0 = posterior.freedom.new_tensor(options.nu0)
    log_psi0 = size * math.log(options.psi0)
    distance_BJ = ((posterior.mean - options.m0).square() / posterior.scale).sum(-1) * posterior.freedom
    expected_trace_BJ = options.psi0 * (posterior.freedom.unsqueeze(-1) / posterior.scale).sum(-1)
    gaussian_BJ = (
        log_wishart(posterior.freedom, posterior.scale.log().sum(-1))
        - log_wishart(nu0, nu0.new_tensor(log_psi0))
        + 0.5 * (posterior.freedom - nu0) * posterior.log_precision
        - 0.5 * posterior.freedom * size
        + 0.5 * expected_trace_BJ
        + 0.5 * size * (options.kappa0 / posterior.strength - 1 - math.log(options.kappa0))
        + 0.5 * size * posterior.strength.log()
        + 0.5 * options.kappa0 * distance_BJ
    )
    alpha_BJ = posterior.concentration
    weights_BJ = (alpha_BJ - options.alpha0) * posterior.log_share - alpha_BJ.lgamma() + math.lgamma(options.alpha0)
    per_parent_B = of_existing(gaussian_BJ + weights_BJ, mask).flatten(1).sum(1)
    return per_parent_B + _log_gamma_of_totals(problem, alpha_BJ)


def _log_gamma_of_totals(problem: Problem, concentration: Tensor) -> Tensor:
    """Sum over vectors of mixing weights of ln Gamma(sum of alpha), up to the constant of the prior: (B,)."""
    totals = total(problem, concentration)
    mask = problem.votes.window_mask
    if mask is not None and totals.shape[1:-1] == mask.shape[1:]:
        totals = torch.where(mask.unsqueeze(-1), totals, torch.ones_like(totals))
    return totals.lgamma().flatten(1).sum(1)
