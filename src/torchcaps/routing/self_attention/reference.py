"""Self-attention routing, line by line as in the mathematics."""

import math

from torchcaps.capsules import Capsules, length, squash_exponentially
from torchcaps.routing.learned import of_slots
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import agreement, per_example, weighted_sum


def self_attention(problem: Problem) -> RoutingResult:
    """Solve a self-attention-routing problem in eager torch."""
    options, competition = problem.options, problem.compete()
    votes_BIJD = problem.votes.materialise()
    # sum_k <V_ij, V_kj> is the product with the sum of all votes: no matrix of children by children
    attention_BIJ = agreement(votes_BIJD, votes_BIJD.sum(-3)) / math.sqrt(votes_BIJD.shape[-1])
    if problem.initial_logits is not None:
        attention_BIJ = attention_BIJ + problem.initial_logits
    coupling_BIJ = competition.softmax(attention_BIJ)
    if options.bias is not None:
        coupling_BIJ = competition.where_takes_part(coupling_BIJ + of_slots(options.bias, problem.votes.num_slots))
    if (amendment_BI1 := problem.slot_weights()) is not None:
        coupling_BIJ = coupling_BIJ * amendment_BI1
    sums_BJD = weighted_sum(coupling_BIJ, votes_BIJD)
    poses_BJD = squash_exponentially(sums_BJD)
    trace = None
    if problem.return_trace:
        step = coupling_BIJ, poses_BJD, length(poses_BJD), -per_example(length(sums_BJD))
        trace = (TraceStep(*(value.detach() for value in step)),)
    return RoutingResult(Capsules.from_poses(poses_BJD), coupling_BIJ.detach(), trace)
