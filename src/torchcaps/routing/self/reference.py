"""Self-routing, line by line as in the mathematics."""

from torchcaps.capsules import Capsules
from torchcaps.routing.em.common import of_existing
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import LEAST_MASS, per_example, weighted_sum


def self_route(problem: Problem) -> RoutingResult:
    """Solve a self-routing problem in eager torch: one weighted mean from given logits."""
    votes, competition = problem.votes, problem.compete()
    votes_BIJD = votes.materialise()
    activations_BI1 = votes.slots(votes.child_weights()).unsqueeze(-1)
    coupling_BIJ = competition.first(problem.initial_logits)
    weighted_BIJ = coupling_BIJ * activations_BI1
    mass_BJ = weighted_BIJ.sum(-2)
    share_BIJ = weighted_BIJ / mass_BJ.clamp_min(LEAST_MASS).unsqueeze(-2)
    mean_BJD = weighted_sum(share_BIJ, votes_BIJD)
    activations_BJ = of_existing(mass_BJ / activations_BI1.sum(-2).clamp_min(LEAST_MASS), votes.window_mask)
    trace = None
    if problem.return_trace:
        spread_BJD = weighted_sum(share_BIJ, (votes_BIJD - mean_BJD.unsqueeze(-3)).square())
        step = coupling_BIJ, mean_BJD, activations_BJ, per_example(mass_BJ.unsqueeze(-1) * spread_BJD)
        trace = (TraceStep(*(value.detach() for value in step)),)
    return RoutingResult(Capsules(mean_BJD, activations_BJ), coupling_BIJ.detach(), trace)
