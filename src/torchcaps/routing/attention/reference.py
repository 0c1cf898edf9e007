"""Inverted dot-product attention, line by line as in the mathematics."""

import math

import torch
from torch.nn.functional import layer_norm

from torchcaps.capsules import Capsules, length, squash
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
        poses_BJD = layer_norm(sums_BJD, (size,), options.scale, options.shift, options.eps)
        if (exists := problem.votes.window_mask) is not None:  # the shift gives poses to what is not there
            poses_BJD = torch.where(exists[..., None, None], poses_BJD, torch.zeros_like(poses_BJD))
        activations_BJ = length(squash(sums_BJD, options.squash_k))
        last = iteration + 1 == options.num_iterations
        if last and not problem.return_trace:
            break
        logits_BIJ = agreement(votes_BIJD, poses_BJD) / math.sqrt(size)
        if problem.return_trace:
            step = coupling_BIJ, poses_BJD, activations_BJ, -competition.log_partition(logits_BIJ)
            trace.append(TraceStep(*(value.detach() for value in step)))
        if not last:
            coupling_BIJ = competition.softmax(logits_BIJ)
    return RoutingResult(
        Capsules(poses_BJD, activations_BJ), coupling_BIJ.detach(), tuple(trace) if problem.return_trace else None
    )
