"""Inverted dot-product attention, line by line as in the mathematics."""

import math

from torchcaps.routing.attention.common import parents
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import agreement, weighted_sum


def attention(problem: Problem) -> RoutingResult:
    """Solve an attention-routing problem in eager torch."""
    options, competition = problem.options, problem.compete()
    votes_BIJD = problem.votes.materialise()
    size = votes_BIJD.shape[-1]
    amendment_BI1 = problem.slot_weights()
    coupling_BIJ, trace = competition.first(problem.initial_logits), []
    for iteration in range(options.num_iterations):
        if amendment_BI1 is not None:
            coupling_BIJ = coupling_BIJ * amendment_BI1
        sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
        found = parents(problem, sums_BJD)
        last = iteration + 1 == options.num_iterations
        if last and not problem.return_trace:
            break
        logits_BIJ = agreement(votes_BIJD, found.poses) / math.sqrt(size)
        if problem.return_trace:
            step = coupling_BIJ, *found, -competition.log_partition(logits_BIJ)
            trace.append(TraceStep(*(value.detach() for value in step)))
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ)
    return RoutingResult(found, coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None)
