"""Entropy-regularised routing, line by line as in the mathematics."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, length, normalise
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import agreement, per_example, weighted_sum


def entropy(problem: Problem) -> RoutingResult:
    """Solve an entropy-routing problem in eager torch."""
    alphas, competition = problem.options.alpha, problem.compete()
    votes_BIJD = problem.votes.materialise()
    amendment_BI1 = problem.slot_weights()
    coupling_BIJ, trace = competition.first(problem.initial_logits), []
    for iteration, alpha in enumerate(alphas):
        if amendment_BI1 is not None:
            coupling_BIJ = coupling_BIJ * amendment_BI1
        sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
        directions_BJD = normalise(sums_BJD)
        if problem.return_trace:
            step = coupling_BIJ, sums_BJD, weights(sums_BJD), free_energy(coupling_BIJ, sums_BJD, alpha)
            trace.append(TraceStep(*(value.detach() for value in step)))
        if iteration + 1 < len(alphas):
            coupling_BIJ = competition.softmax(agreement(votes_BIJD, directions_BJD) / alpha)
    # w_j s_j with the lengths cancelled, so that a parent of length 0 has its derivative too.
    longest_B11 = length(sums_BJD).amax(-1)[..., None, None]
    capsules = Capsules(sums_BJD / (1 + longest_B11), weights(sums_BJD))
    return RoutingResult(capsules, coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None)


def weights(sums: Tensor) -> Tensor:
    """w_j = |s_j| / (1 + max_k |s_k|), the length of the output: (..., J, D) -> (..., J)."""
    norm = length(sums)
    return norm / (1 + norm.amax(-1, keepdim=True))


def free_energy(coupling: Tensor, sums: Tensor, alpha: float) -> Tensor:
    """F = -sum_ij c_ij <v_ij, s_j> + alpha sum_ij c_ij log c_ij with s_j = normalise(sums_j), per example."""
    return alpha * per_example(torch.xlogy(coupling, coupling)) - per_example(length(sums))
