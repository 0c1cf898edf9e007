"""Max-min routing, line by line as in the mathematics."""

from torchcaps.capsules import Capsules, length, squash
from torchcaps.routing.dynamic.reference import potential
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import agreement, weighted_sum


def max_min(problem: Problem) -> RoutingResult:
    """Solve a max-min-routing problem in eager torch."""
    options, competition = problem.options, problem.compete()
    votes_BIJD = problem.votes.materialise()
    logits_BIJ = problem.first_logits()
    amendment_BI1 = problem.slot_weights()
    trace = []
    for iteration in range(options.num_iterations):
        coupling_BIJ = competition.max_min(logits_BIJ)
        if amendment_BI1 is not None:
            coupling_BIJ = coupling_BIJ * amendment_BI1
        if options.detach_couplings:
            coupling_BIJ = coupling_BIJ.detach()
        sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
        poses_BJD = squash(sums_BJD, options.squash_k)
        if problem.return_trace:
            step = coupling_BIJ, poses_BJD, length(poses_BJD), potential(sums_BJD, options.squash_k)
            trace.append(TraceStep(*(value.detach() for value in step)))
        if iteration + 1 < options.num_iterations:
            logits_BIJ = logits_BIJ + agreement(votes_BIJD, poses_BJD)
    return RoutingResult(
        Capsules.from_poses(poses_BJD), coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None
    )
