"""Variational Bayes routing, line by line as in the mathematics."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.capsules import Capsules
from torchcaps.clustering.posterior import (
    Posterior,
    divergence_of_components,
    divergence_of_weights,
    mean_with_prior,
    update,
)
from torchcaps.routing.em.common import of_existing
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import weighted_sum


def vb(problem: Problem) -> RoutingResult:
    """Solve a variational routing problem in eager torch."""
    options, votes, competition = problem.options, problem.votes, problem.compete()
    votes_BIJD = votes.materialise()
    activations_BI = votes.child_weights()
    activations_BI1 = votes.slots(activations_BI).unsqueeze(-1)
    coupling_BIJ, trace = competition.first(problem.initial_logits), []
    for iteration in range(options.num_iterations):
        weighted_BIJ = coupling_BIJ * activations_BI1
        mass_BJ = weighted_BIJ.sum(-2)
        mean_BJD = mean_with_prior(mass_BJ, weighted_sum(weighted_BIJ, votes_BIJD), options.prior)
        deviation_BIJD = (votes_BIJD - mean_BJD.unsqueeze(-3)).square()
        posterior = update(mass_BJ, mean_BJD, weighted_sum(weighted_BIJ, deviation_BIJD), options.prior)
        log_share_BJ = posterior.alpha.digamma() - total(problem, posterior.alpha).digamma()
        log_precision_BJ = posterior.log_precision
        logit_BJ = activation_logit(options, log_share_BJ, log_precision_BJ, votes.vote_size)
        # not sigmoid: torch takes its derivative a (1 - a) from a rounded a, which has no digits where a is nearly 1
        activation_BJ = logsigmoid(logit_BJ).exp()
        last = iteration + 1 == options.num_iterations
        if last and not problem.return_trace:
            break
        distance_BIJ = (deviation_BIJD / posterior.scale.unsqueeze(-3)).sum(-1)
        prior_BJ = log_share_BJ + 0.5 * log_precision_BJ - 0.5 * votes.vote_size / posterior.kappa
        logits_BIJ = prior_BJ.unsqueeze(-2) - 0.5 * posterior.nu.unsqueeze(-2) * distance_BIJ
        if problem.return_trace:
            objective_B = divergence(problem, posterior, log_share_BJ)
            objective_B = objective_B - competition.log_partition(logits_BIJ, activations_BI)
            step = coupling_BIJ, posterior.mean, of_existing(activation_BJ, votes.window_mask), objective_B
            trace.append(TraceStep(*(value.detach() for value in step)))
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ.detach() if options.detach_couplings else logits_BIJ)
    capsules = Capsules(posterior.mean, of_existing(activation_BJ, votes.window_mask))
    trace = tuple(trace) if problem.return_trace else None
    return RoutingResult(capsules, coupling_BIJ.detach(), trace, logits=logit_BJ)


def activation_logit(options, log_share: Tensor, log_precision: Tensor, size: int) -> Tensor:
    """x of a_j = sigmoid(x): a parent is active if its share is large and its entropy low, (B, ..., J)."""
    entropy = 0.5 * size * math.log(2 * math.pi * math.e) - 0.5 * log_precision
    return options.beta_a - options.beta_u - log_share.exp() * entropy


def total(problem: Problem, alpha: Tensor) -> Tensor:
    """The sum of alpha over the parents that share one vector of mixing weights, for each of them.

    These are the types of a position; under "global" competition all parents of the layer, under "position" the
    positions of a type.
    """
    there = of_existing(alpha, problem.votes.window_mask)
    axes = {"window": (-1,), "global": tuple(range(1, there.dim())), "position": tuple(range(1, there.dim() - 1))}
    kind = "window" if problem.votes.windows is None else problem.competition
    return there.sum(axes[kind], keepdim=True).clamp_min(problem.options.prior.alpha)


def divergence(problem: Problem, posterior: Posterior, log_share: Tensor) -> Tensor:
    """How far the posterior of all parents is from the prior, up to constants: (B,).

    With it -sum_i a_i ln sum_j rho_ij becomes the negative evidence bound, which no step raises under window
    competition.
    """
    prior, mask = problem.options.prior, problem.votes.window_mask
    parents = divergence_of_components(posterior, prior) + divergence_of_weights(posterior.alpha, log_share, prior)
    totals = total(problem, posterior.alpha)
    if mask is not None and totals.shape[1:-1] == mask.shape[1:]:
        totals = torch.where(mask.unsqueeze(-1), totals, torch.ones_like(totals))
    return of_existing(parents, mask).flatten(1).sum(1) + totals.lgamma().flatten(1).sum(1)
