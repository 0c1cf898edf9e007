"""Dynamic routing: the public function."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.dynamic.lowering import LOWERING
from torchcaps.routing.dynamic.reference import dynamic
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes

DYNAMIC = Algorithm("dynamic", dynamic, lowering=LOWERING)


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """What only dynamic routing knows."""

    num_iterations: int
    squash_k: float
    detach_couplings: bool


def dynamic_routing(
    votes: Votes | Tensor,
    *,
    num_iterations: int = 3,
    squash_k: float = 1.0,
    leaky: bool = False,
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
    r"""Routing by agreement (Sabour, Frosst, Hinton 2017).

    .. math::
        c_i = softmax_j(b_i), \quad \hat s_j = \sum_i c_{ij} \hat u_{ij}, \quad v_j = squash(\hat s_j), \quad
        b_{ij} \leftarrow b_{ij} + \langle \hat u_{ij}, v_j \rangle

    repeated `num_iterations` times from b = 0; the last agreement is not computed. Each iteration is a step of
    mirror descent on the objective that the trace reports (see the README beside this file); under position competition
    without `initial_logits` from the second iteration on.

    Args:
        votes: tensor (B, I, J, D) or a description.
        num_iterations: r; with r = 1 the couplings stay uniform.
        squash_k: k of the squash; 1 in the paper.
        leaky: an extra parent with logit 0 joins every softmax and its share is dropped.
        detach_couplings: only the last weighted sum carries gradients.
        amend: multiply couplings by the activations of the children (Zhao 2018).
        partial: partial normalisation: the probability with which a parent takes part (one draw for the whole
            batch, at least one parent), or the boolean (J,) itself; the others get coupling 0.
        competition: for convolutional votes, among whom a child shares itself: "window": the parent types of each
            window separately; "global": all positions and types that see it; "position": the positions that see it,
            for each type by itself, so that types do not compete. Then its couplings sum to the number of types J, and
            the first ones, without `initial_logits`, are 1 / J all the same (`leaky`: 1 / (J + 1), later one leak for
            each type; `partial`: one over the types that take part). Dense and class votes compete over types under
            each of the three.
        initial_logits: b at the start, of the shape of the couplings.
        activations: (B, I), for `amend` when the votes do not carry them.
        mask: (B, I), False = padding, when the votes do not carry it.
        backend: "auto", or the name of one: "fused", "triton", "chunked", "reference".
        return_trace: record every iteration.

    Shapes:
        capsules: poses (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> result = dynamic_routing(torch.ones(1, 5, 2, 4))
        >>> result.coupling[0, 0]
        tensor([0.5000, 0.5000])
    """
    options = DynamicOptions(
        num_iterations=check_count("num_iterations", num_iterations),
        squash_k=check_positive("squash_k", squash_k),
        detach_couplings=detach_couplings,
    )
    problem = pose_problem(
        DYNAMIC,
        votes,
        options,
        activations=activations,
        mask=mask,
        competition=competition,
        initial_logits=initial_logits,
        leaky=leaky,
        partial=partial,
        amend=amend,
        return_trace=return_trace,
    )
    return solve(problem, backend)
