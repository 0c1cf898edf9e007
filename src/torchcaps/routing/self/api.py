"""Self-routing: the public function."""

from torch import Tensor

from torchcaps.routing.backend import solve
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.self.lowering import LOWERING
from torchcaps.routing.self.reference import self_route
from torchcaps.votes import Votes, as_votes

SELF = Algorithm("self", self_route, lowering=LOWERING)


def self_routing(
    votes: Votes | Tensor,
    activations: Tensor | None = None,
    *,
    competition: str = "window",
    initial_logits: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Children that decide by themselves where they belong (Hahn, Pyeon, Kim 2019).

    .. math::
        c_i = softmax_j(b_i), \quad a_j = \frac{\sum_i c_{ij} a_i}{\sum_i a_i}, \quad
        v_j = \frac{\sum_i c_{ij} a_i V_{ij}}{\sum_i c_{ij} a_i}

    without any iteration. The logits b come from the pose of the child, which votes do not show: give them as
    `initial_logits`, computed by a layer of your own.

    Args:
        votes: tensor (B, I, J, D) or a description.
        activations: a_i (B, I), when the votes do not carry them.
        initial_logits: b, of the shape of the couplings; without them couplings are uniform.
        competition, mask, backend, return_trace: as in :func:`dynamic_routing`. The trace has one step.

    Shapes:
        capsules: poses (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> self_routing(torch.randn(2, 6, 4, 3), torch.rand(2, 6)).capsules.activations.sum(-1).round(decimals=3)
        tensor([1., 1.])
    """
    description = as_votes(votes, activations=activations, mask=mask)
    if description.activations is None:
        raise ValueError("self-routing weighs children by their activations; give activations (B, I), ones if unknown")
    problem = pose_problem(
        SELF, description, None, competition=competition, initial_logits=initial_logits, return_trace=return_trace
    )
    return solve(problem, backend)
