"""Heinsen routing, line by line as in the mathematics."""

import math

from torch.nn.functional import logsigmoid

from torchcaps.capsules import Capsules
from torchcaps.routing.em.common import of_existing
from torchcaps.routing.learned import of_slots
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import LEAST_MASS, weighted_sum


def heinsen(problem: Problem) -> RoutingResult:
    """Solve a Heinsen-routing problem in eager torch."""
    options, votes, competition = problem.options, problem.votes, problem.compete()
    votes_BIJD = votes.materialise()
    activations_BI = votes.child_weights()
    data_BI1 = votes.slots(activations_BI).unsqueeze(-1)
    beta_use_IJ, beta_ignore_IJ = (of_slots(beta, votes.num_slots) for beta in (options.beta_use, options.beta_ignore))
    coupling_BIJ, trace = competition.first(problem.initial_logits), []
    for iteration in range(options.num_iterations):
        # what is used of every child, and what is ignored
        used_BIJ = data_BI1 * coupling_BIJ
        ignored_BIJ = competition.where_takes_part(data_BI1 - used_BIJ)
        logit_BJ = (beta_use_IJ * used_BIJ - beta_ignore_IJ * ignored_BIJ).sum(-2)
        mass_BJ = used_BIJ.sum(-2)
        share_BIJ = used_BIJ / mass_BJ.clamp_min(LEAST_MASS).unsqueeze(-2)
        mean_BJD = weighted_sum(share_BIJ, votes_BIJD)
        deviation_BIJD = (votes_BIJD - mean_BJD.unsqueeze(-3)).square()
        variance_BJD = weighted_sum(share_BIJ, deviation_BIJD) + options.eps_var
        # not sigmoid: torch takes its derivative a (1 - a) from a rounded a, which has no digits where a is nearly 1
        log_activation_BJ = logsigmoid(logit_BJ)
        last = iteration + 1 == options.num_iterations
        if last and not problem.return_trace:
            break
        normaliser_BJ = (2 * math.pi * variance_BJD).log().sum(-1)
        log_density_BIJ = -0.5 * ((deviation_BIJD / variance_BJD.unsqueeze(-3)).sum(-1) + normaliser_BJ.unsqueeze(-2))
        logits_BIJ = log_activation_BJ.unsqueeze(-2) + log_density_BIJ
        if problem.return_trace:
            activations_BJ = of_existing(log_activation_BJ.exp(), votes.window_mask)
            step = coupling_BIJ, mean_BJD, activations_BJ, -competition.log_partition(logits_BIJ, activations_BI)
            trace.append(TraceStep(*(value.detach() for value in step)))
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ.detach() if options.detach_couplings else logits_BIJ)
    capsules = Capsules(mean_BJD, of_existing(log_activation_BJ.exp(), votes.window_mask))
    trace = tuple(trace) if problem.return_trace else None
    return RoutingResult(capsules, coupling_BIJ.detach(), trace, logits=logit_BJ)
