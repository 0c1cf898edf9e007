"""EM routing, line by line as in the mathematics."""

import math

from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.capsules import Capsules
from torchcaps.routing.em.common import KAPPA, of_existing
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import LEAST_MASS, weighted_sum


def em(problem: Problem) -> RoutingResult:
    """Solve an EM-routing problem in eager torch."""
    options, votes, competition = problem.options, problem.votes, problem.compete()
    votes_BIJD = votes.materialise()
    activations_BI = votes.child_weights()
    activations_BI1 = votes.slots(activations_BI).unsqueeze(-1)
    coupling_BIJ = competition.first(problem.initial_logits)
    mass_scale, kappa = cost_scale(problem, coupling_BIJ)
    old_BJD, trace = None, []
    for iteration, sharpness in enumerate(options.lambdas):
        # M-step: fit a Gaussian to the votes of each parent
        weighted_BIJ = coupling_BIJ * activations_BI1
        mass_BJ = weighted_BIJ.sum(-2)
        share_BIJ = weighted_BIJ / mass_BJ.clamp_min(LEAST_MASS).unsqueeze(-2)
        mean_BJD = damped(weighted_sum(share_BIJ, votes_BIJD), old_BJD, options)
        deviation_BIJD = (votes_BIJD - mean_BJD.unsqueeze(-3)).square()
        variance_BJD = weighted_sum(share_BIJ, deviation_BIJD) + options.eps_var
        logit_BJ = activation_logit(options, sharpness * kappa, mass_BJ, variance_BJD, mass_scale)
        log_activation_BJ = log_share(mass_BJ, votes.window_mask) if logit_BJ is None else logsigmoid(logit_BJ)
        last = iteration + 1 == len(options.lambdas)
        if last and not problem.return_trace:
            break
        # E-step: responsibilities
        normaliser_BJ = (2 * math.pi * variance_BJD).log().sum(-1)
        log_density_BIJ = -0.5 * ((deviation_BIJD / variance_BJD.unsqueeze(-3)).sum(-1) + normaliser_BJ.unsqueeze(-2))
        inverse_temperature = options.inverse_temperatures[iteration]
        logits_BIJ = inverse_temperature * (log_activation_BJ.unsqueeze(-2) + log_density_BIJ)
        if problem.return_trace:
            likelihood_B = competition.log_partition(logits_BIJ, activations_BI) / inverse_temperature
            step = coupling_BIJ, mean_BJD, of_existing(log_activation_BJ.exp(), votes.window_mask), -likelihood_B
            trace.append(TraceStep(*(value.detach() for value in step)))
        old_BJD = mean_BJD
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ.detach() if options.detach_couplings else logits_BIJ)
    capsules = Capsules(mean_BJD, of_existing(log_activation_BJ.exp(), votes.window_mask))
    trace = tuple(trace) if problem.return_trace else None
    return RoutingResult(capsules, coupling_BIJ.detach(), trace, logits=logit_BJ)


def damped(new: Tensor, old: Tensor | None, options) -> Tensor:
    """Means of an M-step, drawn back to those of the one before, or to 0: (B, ..., J, D)."""
    if options.damping == 0:
        return new
    damped = (1 - options.damping) * new
    if old is None:
        return damped
    return damped + options.damping * (old.detach() if options.detach_couplings else old)


def cost_scale(problem: Problem, first_coupling: Tensor) -> tuple[Tensor | float, float]:
    """(mbar, kappa): the mean mass of a parent at the start, and the factor that undoes it on average."""
    kappa = KAPPA[problem.options.cost_scale]
    if problem.options.cost_scale == "paper":
        return 1.0, kappa
    mass_BJ = first_coupling.detach().sum(-2)
    window_mask = problem.votes.window_mask
    if window_mask is None:
        mean_B = mass_BJ.flatten(1).mean(1)
    else:
        mean_B = mass_BJ.flatten(1).sum(1) / (window_mask.flatten(1).sum(1) * mass_BJ.shape[-1]).clamp_min(1)
    return mean_B.clamp_min(LEAST_MASS).view(-1, *[1] * (mass_BJ.dim() - 1)), kappa


def log_share(mass: Tensor, window_mask: Tensor | None) -> Tensor:
    """ln a_j of "mixing" after an M-step: the share of the mass of the whole layer, (B, ..., J)."""
    total = of_existing(mass, window_mask).flatten(1).sum(1).view(-1, *[1] * (mass.dim() - 1))
    return mass.clamp_min(LEAST_MASS).log() - total.clamp_min(LEAST_MASS).log()


def activation_logit(
    options, scale: float, mass: Tensor, variance: Tensor, mass_scale: Tensor | float
) -> Tensor | None:
    """x of a_j = sigmoid(x) after an M-step, (B, ..., J); None for "mixing", which has no sigmoid."""
    if options.activation == "mixing":
        return None
    half_log_variance = 0.5 * variance.log()
    if options.activation == "entropy":
        return scale * (options.beta_a - options.beta_u - half_log_variance.sum(-1))
    cost = (options.beta_u.unsqueeze(-1) + half_log_variance).sum(-1) * mass
    return scale * (options.beta_a - cost / mass_scale)
