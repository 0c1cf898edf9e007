"""Attention routing among the softmax routings: queries are LayerNorms of the sums."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.routing.attention.common import parents
from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxInputs, SoftmaxLowering, SoftmaxOptions
from torchcaps.routing.problem import Problem


def softmax_options(options) -> SoftmaxOptions:
    """The kernel tells the last sums: poses and activations are both made of them."""
    return SoftmaxOptions(
        algorithm=SoftmaxAlgorithm.ATTENTION.value, num_sums=options.num_iterations, epsilon=options.eps
    )


class AttentionLowering(SoftmaxLowering):
    """Scale and shift go in, sums come out."""

    def affine(self, problem: Problem) -> Tensor | None:
        options, votes = problem.options, problem.votes
        if options.scale is None and options.shift is None:
            return None
        scale = votes.example.new_ones(votes.vote_size) if options.scale is None else options.scale
        shift = torch.zeros_like(scale) if options.shift is None else options.shift
        return torch.stack((scale, shift))

    def capsules(self, problem: Problem, inputs: SoftmaxInputs, found: Tensor) -> Capsules:
        return parents(problem, found)


LOWERING = AttentionLowering(softmax_options)
