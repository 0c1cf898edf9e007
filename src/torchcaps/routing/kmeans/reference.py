"""K-Means routing, line by line as in the mathematics."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, length, normalise, squash
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.steps import agreement, per_example, weighted_sum


def kmeans(problem: Problem) -> RoutingResult:
    """Solve a K-Means-routing problem in eager torch."""
    options, competition = problem.options, problem.compete()
    votes_BIJD = problem.votes.materialise()
    amendment_BI1 = problem.slot_weights()
    temperature = options.inverse_temperature
    trace = []

    def couple(similarity_BIJ: Tensor) -> Tensor:
        coupling_BIJ = competition.assign(similarity_BIJ) if options.hard else competition.softmax(similarity_BIJ)
        return coupling_BIJ if amendment_BI1 is None else coupling_BIJ * amendment_BI1

    def record() -> None:
        if not problem.return_trace:
            return
        lengths_BJ = length(squash(centres_BJD, options.squash_k))
        similarity_BIJ = -distance(votes_BIJD, centres_BJD, options.metric)
        if options.hard:  # T = infinity: each child pays the distance to its own centre
            assigned_BIJ = competition.assign(similarity_BIJ)
            paid_BIJ = -assigned_BIJ * similarity_BIJ
            loss_B = per_example(paid_BIJ if amendment_BI1 is None else paid_BIJ * amendment_BI1)
        else:
            weight_BI = problem.votes.child_weights() if problem.amend else None
            loss_B = -competition.log_partition(temperature * similarity_BIJ, weight_BI) / temperature
        step = coupling_BIJ, centres_BJD, lengths_BJ, loss_B
        trace.append(TraceStep(*(value.detach() for value in step)))

    coupling_BIJ = competition.first(problem.initial_logits)
    if amendment_BI1 is not None:
        coupling_BIJ = coupling_BIJ * amendment_BI1
    centres_BJD = centres(coupling_BIJ, votes_BIJD, options.metric)
    record()
    for _ in range(options.num_iterations):
        similarity_BIJ = -distance(votes_BIJD, centres_BJD, options.metric)
        coupling_BIJ = couple(temperature * similarity_BIJ)
        moved_BJD = centres(coupling_BIJ, votes_BIJD, options.metric)
        if options.hard:  # a parent without members keeps its centre
            has_members_BJ1 = (coupling_BIJ != 0).any(-2).unsqueeze(-1)
            moved_BJD = torch.where(has_members_BJ1, moved_BJD, centres_BJD)
        centres_BJD = moved_BJD
        record()
    return RoutingResult(
        Capsules.from_poses(squash(centres_BJD, options.squash_k)),
        coupling_BIJ.detach(),
        tuple(trace) if problem.return_trace else None,
    )


def distance(votes: Tensor, centres: Tensor, metric: str) -> Tensor:
    """d(vote, centre): (..., I, J, D), (..., J, D) -> (..., I, J)."""
    if metric == "dot":
        return -agreement(votes, normalise(centres))
    return (votes - centres.unsqueeze(-3)).square().sum(-1)


def centres(coupling: Tensor, votes: Tensor, metric: str) -> Tensor:
    """Sums for the dot metric ("more members, more power"), means for the Euclidean one."""
    sums = weighted_sum(coupling, votes)
    if metric == "dot":
        return sums
    mass = coupling.sum(-2).unsqueeze(-1)
    # a parent without mass has centre 0 and no gradient; below the bound its gradients would overflow
    is_empty = mass <= (1e-290 if mass.dtype == torch.float64 else 1e-30)
    return torch.where(is_empty, torch.zeros_like(sums), sums / torch.where(is_empty, torch.ones_like(mass), mass))
