"""Self-attention routing as softmax routings: one whose query is the sum of all votes, and the bias as couplings."""

import math

import torch
from torch import Tensor

from torchcaps.capsules import Capsules, squash_exponentially
from torchcaps.routing.learned import of_slots
from torchcaps.routing.ops.operator import flatten
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxAlgorithm, SoftmaxInputs, SoftmaxLowering, SoftmaxOptions
from torchcaps.routing.ops.tables import transforms_of
from torchcaps.routing.ops.votes import KernelVotes, needs_state
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult


class SelfAttentionLowering(SoftmaxLowering):
    """The first couplings of a kernel are equal shares 1 / J, so J times their sums are the sums of all votes."""

    def why_not(self, problem: Problem) -> str | None:
        if problem.amend or problem.partial is not None or problem.initial_logits is not None:
            return "its kernel takes no amended or partial couplings and no initial_logits"
        if problem.votes.windows is not None and problem.competition != "window":
            return f"its kernel takes window competition, not {problem.competition!r}"
        return super().why_not(problem)

    def inputs(self, problem: Problem) -> SoftmaxInputs:
        inputs = super().inputs(problem)
        temperature = inputs.votes.num_parents / math.sqrt(inputs.votes.vote_size)
        return inputs._replace(options=inputs.options._replace(inverse_temperatures=(temperature,) * 2))

    def capsules(self, problem: Problem, inputs: SoftmaxInputs, found: Tensor) -> Capsules:
        if (bias := problem.options.bias) is not None:
            found = found + coupled_by(bias, inputs).view_as(found)
        return Capsules.from_poses(squash_exponentially(found))

    def run(self, problem: Problem) -> RoutingResult:
        result, bias, competition = super().run(problem), problem.options.bias, problem.compete()
        if bias is None:
            return result

        @torch.no_grad()
        def coupling() -> Tensor:
            return competition.where_takes_part(result.coupling + of_slots(bias, problem.votes.num_slots))

        return RoutingResult(result.capsules, coupling, reads=(bias,))


def coupled_by(bias: Tensor, inputs: SoftmaxInputs) -> Tensor:
    """Sums of all votes, each times the number of its child and parent, (T, J): those of votes with other weights.

    Shapes:
        the result: (B, S, J, D)
    """
    votes = inputs.votes
    num_transforms = math.lcm(len(votes.weight), len(bias))
    factor_TJ = of_slots(bias, num_transforms)
    scaled = votes._replace(
        weight=votes.weight.repeat(num_transforms // len(votes.weight), 1, 1, 1) * factor_TJ[..., None, None],
        bias=None
        if votes.bias is None
        else votes.bias.repeat(num_transforms // len(votes.bias), 1, 1) * factor_TJ[..., None],
        offset=None,
        transform=None
        if num_transforms == votes.num_slots
        else transforms_of(votes.num_slots, num_transforms, votes.poses.device),
    )
    values = flatten(inputs._replace(votes=scaled, options=inputs.options._replace(num_sums=1)))
    sums = SOFTMAX.forward(*values, needs_state(values))[0] * votes.num_parents
    if votes.offset is None:
        return sums
    return sums + coupled_offset(votes, of_slots(bias, votes.num_slots))


def coupled_offset(votes: KernelVotes, factor_NJ: Tensor) -> Tensor:
    """What is added to the votes of slots, times their numbers: (B, S, J, D)."""
    assert votes.offset is not None
    offset_NJD = factor_NJ.unsqueeze(-1) * votes.offset.unsqueeze(1)
    if votes.child_mask is None:
        return offset_NJD.sum(0).expand(*votes.parent_shape, -1)
    assert votes.child is None, "votes with coordinates have one window"
    return torch.einsum("bn,njd->bjd", votes.child_mask.to(offset_NJD.dtype), offset_NJD).unsqueeze(1)


LOWERING = SelfAttentionLowering(lambda options: SoftmaxOptions(algorithm=SoftmaxAlgorithm.LINEAR.value, num_sums=2))
