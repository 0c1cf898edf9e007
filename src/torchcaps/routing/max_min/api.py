"""Max-min routing: the public function."""

from torch import Tensor

from torchcaps.checks import check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.dynamic.api import DynamicOptions
from torchcaps.routing.max_min.lowering import LOWERING
from torchcaps.routing.max_min.reference import max_min
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes

MAX_MIN = Algorithm("max_min", max_min, lowering=LOWERING)


def max_min_routing(
    votes: Votes | Tensor,
    *,
    num_iterations: int = 3,
    squash_k: float = 1.0,
    detach_couplings: bool = False,
    amend: bool = False,
    partial: float | Tensor | None = None,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Dynamic routing whose couplings are places between extremes (Zhao et al. 2019).

    .. math::
        c_{ij} = \frac{b_{ij} - \min_k b_{ik}}{\max_k b_{ik} - \min_k b_{ik}}

    in the place of the softmax; 1 for all where they are equal, as at the start. The couplings of a child do not sum
    to 1, and with two parents they are always 0 and 1. At ties the gradient of an extreme goes to the first parent.

    Args:
        votes: tensor (B, I, J, D) or a description.
        num_iterations: r; with r = 1 all couplings are 1.
        squash_k, detach_couplings, amend, partial, initial_logits, activations, mask, backend, return_trace: as in
            :func:`dynamic_routing`; the trace's objective is that of dynamic routing, for comparison, and may rise.
        competition: among whom the extremes are taken.

    Shapes:
        capsules: poses (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> result = max_min_routing(torch.randn(2, 5, 3, 4))
        >>> result.coupling.amax(-1).unique(), result.coupling.amin(-1).unique()
        (tensor([1.]), tensor([0.]))
    """
    options = DynamicOptions(
        num_iterations=check_count("num_iterations", num_iterations),
        squash_k=check_positive("squash_k", squash_k),
        detach_couplings=detach_couplings,
    )
    problem = pose_problem(
        MAX_MIN,
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
