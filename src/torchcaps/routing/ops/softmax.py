"""The softmax family: dynamic, K-Means and entropy routing as one computation.

:math:`c_i = softmax_j(\\langle \\hat u_{ij}, q_j \\rangle)` and :math:`s_j = \\sum_i c_{ij} \\hat u_{ij}` take turns;
the routings differ in how the next query q follows from the sums s (see csrc/softmax_options.h).
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.routing.ops.bodies import find_body, why_no_body
from torchcaps.routing.ops.operator import Operator, flatten
from torchcaps.routing.ops.votes import (
    KernelVotes,
    competition_number,
    lower,
    lower_logits,
    needs_state,
    why_not_lower,
    windows_compete,
)
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import LinearVotes


class SoftmaxAlgorithm(IntEnum):
    """The numbers of csrc/softmax_options.h."""

    DYNAMIC = 0
    KMEANS_DOT = 1
    KMEANS_EUCLIDEAN = 2
    ENTROPY = 3
    MAX_MIN = 4  # dynamic routing, its softmax replaced by the place between the smallest and the largest logit
    ATTENTION = 5  # queries are LayerNorms of the sums
    LINEAR = 6  # queries are the sums, times the inverse temperature


class SoftmaxOptions(NamedTuple):
    """What distinguishes one softmax routing from another.

    Attributes:
        algorithm: a SoftmaxAlgorithm.
        num_sums: weighted sums, one more than there are coupling updates.
        detach: only the last weighted sum carries gradients.
        squash_k: k of the squash.
        inverse_temperatures: of the couplings that follow each weighted sum; empty for ones.
        alphas: of the entropy routing, one per weighted sum.
        competition: index into KINDS.
        leaky: see Competition.
        epsilon: of the LayerNorm of attention routing.
    """

    algorithm: int
    num_sums: int
    detach: bool = False
    squash_k: float = 1.0
    inverse_temperatures: Sequence[float] = ()
    alphas: Sequence[float] = ()
    competition: int = 0
    leaky: bool = False
    epsilon: float = 0.0


class SoftmaxInputs(NamedTuple):
    """What the operators take; votes have activations only where couplings are multiplied by them (`amend`).

    Shapes:
        partial: (J,) bool, or None for all parents
        initial_logits: (B, S, N, J), or None for zeros
        affine: (2, D), scale and shift of the LayerNorm of attention routing, or None for 1 and 0
    """

    votes: KernelVotes
    partial: Tensor | None
    initial_logits: Tensor | None
    options: SoftmaxOptions
    affine: Tensor | None = None


def _pose_shape(inputs: SoftmaxInputs) -> tuple[int, ...]:
    return *inputs.votes.parent_shape, inputs.votes.vote_size


SOFTMAX = Operator(
    "softmax",
    SoftmaxInputs,
    differentiable=("poses", "weight", "bias", "activations", "initial_logits", "affine"),
    outputs={"poses": _pose_shape},
    told={"couplings": lambda inputs: inputs.votes.coupling_shape},
)


class SoftmaxLowering:
    """How an algorithm becomes a member of the softmax family.

    Args:
        translate: from the algorithm's own options.
        why_not_options: why these options are not taken; None if they are.
    """

    def __init__(
        self,
        translate: Callable[..., SoftmaxOptions],
        why_not_options: Callable[..., str | None] = lambda options: None,
    ) -> None:
        self.translate = translate
        self.why_not_options = why_not_options

    def why_not(self, problem: Problem) -> str | None:
        device_type = problem.votes.example.device.type
        return (
            self.why_not_options(problem.options)
            or why_not_lower(problem)
            or why_no_body(SOFTMAX.family, device_type)
            or find_body(SOFTMAX.family, device_type).why_not(problem, self._options(problem))
        )

    def inputs(self, problem: Problem) -> SoftmaxInputs:
        """What the operators are asked."""
        assert isinstance(problem.votes, LinearVotes)
        votes = lower(problem.votes, windows_compete=windows_compete(problem))
        if not problem.amend:
            votes = votes._replace(activations=None)
        logits, options = lower_logits(problem, votes), self._options(problem)
        return SoftmaxInputs(votes, problem.partial, logits, options, self.affine(problem))

    def affine(self, problem: Problem) -> Tensor | None:
        """What is learned of how queries follow from sums."""
        return None

    def capsules(self, problem: Problem, inputs: SoftmaxInputs, found: Tensor) -> Capsules:
        """What the kernels found as parents."""
        return Capsules.from_poses(found)

    def run(self, problem: Problem) -> RoutingResult:
        description, inputs = problem.votes, self.inputs(problem)
        values = flatten(inputs)
        poses_BSJD, state = SOFTMAX.forward(*values, needs_state(values))
        poses = poses_BSJD.view(-1, *description.positions, *poses_BSJD.shape[2:])

        @torch.no_grad()
        def last_coupling() -> Tensor:
            kept = state if state.numel() else SOFTMAX.forward(*values, True)[-1]
            return SOFTMAX.couplings(kept, inputs.options.num_sums - 1, *values).view(description.coupling_shape)

        return RoutingResult(self.capsules(problem, inputs, poses), last_coupling, reads=values)

    def _options(self, problem: Problem) -> SoftmaxOptions:
        return self.translate(problem.options)._replace(competition=competition_number(problem), leaky=problem.leaky)
