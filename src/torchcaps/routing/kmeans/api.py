"""K-Means routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_choice, check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.kmeans.lowering import LOWERING
from torchcaps.routing.kmeans.reference import kmeans
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes

KMEANS = Algorithm("kmeans", kmeans, lowering=LOWERING)
METRICS = ("dot", "euclidean")


@dataclass(frozen=True, kw_only=True)
class KMeansOptions:
    """What only K-Means routing knows."""

    num_iterations: int
    metric: str
    inverse_temperature: float
    hard: bool
    squash_k: float


def kmeans_routing(
    votes: Votes | Tensor,
    *,
    num_iterations: int = 3,
    metric: str = "dot",
    inverse_temperature: float | None = None,
    hard: bool = False,
    squash_k: float = 1.0,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Routing as soft K-Means of the votes (Su 2018).

    From uniform couplings, for the dot metric,

    .. math::
        n_j = v_j / |v_j|, \quad c_i = softmax_j(T \langle \hat u_{ij}, n_j \rangle), \quad
        v_j = \sum_i c_{ij} \hat u_{ij}

    repeated `num_iterations` times, and squashed once at the end. For the Euclidean metric logits are
    :math:`-T |\hat u_{ij} - v_j|^2` and centres are means. Either way
    :math:`L = -\frac{1}{T} \sum_i \ln \sum_j \exp(-T d(\hat u_{ij}, v_j))` never increases, under any competition;
    under "position" its inner sum is over positions, the outer one over children and types.

    Args:
        votes: tensor (B, I, J, D) or a description.
        num_iterations: r >= 0; r iterations do the work of r + 1 dynamic ones.
        metric: "dot", whose centres are sums, or "euclidean", whose centres are means, so that their length does not
            say how many children agree.
        inverse_temperature: T > 0, 1 unless given; not together with `hard`.
        hard: T = infinity: each child belongs to its nearest parent (ties to the first), a parent without members
            keeps its centre, couplings are constants for the gradient.
        squash_k: k of the final squash; Su found 0.5 better than 1.
        amend, partial, competition, initial_logits, activations, mask, backend, return_trace: as in
            :func:`dynamic_routing`. The trace has r + 1 steps, the first is the start.

    Example:
        >>> import torch
        >>> kmeans_routing(torch.randn(2, 6, 3, 4), num_iterations=2).capsules.poses.shape
        torch.Size([2, 3, 4])
    """
    if hard and inverse_temperature is not None:
        raise ValueError(
            "hard assignment is the limit of infinite inverse_temperature; "
            f"leave out inverse_temperature={inverse_temperature} or hard=True"
        )
    sharpness = 1.0 if inverse_temperature is None else check_positive("inverse_temperature", inverse_temperature)
    options = KMeansOptions(
        num_iterations=check_count("num_iterations", num_iterations, least=0),
        metric=check_choice("metric", metric, METRICS),
        inverse_temperature=sharpness,
        hard=hard,
        squash_k=check_positive("squash_k", squash_k),
    )
    problem = pose_problem(
        KMEANS,
        votes,
        options,
        activations=activations,
        mask=mask,
        competition=competition,
        initial_logits=initial_logits,
        partial=partial,
        amend=amend,
        return_trace=return_trace,
    )
    return solve(problem, backend)
