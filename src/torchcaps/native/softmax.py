"""The softmax family on the CPU.

The forward pass keeps the sums of every iteration and nothing that grows with the number of votes; couplings are
computed again when they are asked for.
"""

import ctypes
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from torchcaps.native.calls import LARGEST_COUNT, call, doubles, why_not_count, why_not_native
from torchcaps.native.struct import SoftmaxOptionsStruct, pointer
from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.problem import Problem


class NativeSoftmax:
    """Its state: sums (num_sums, B, S, J, D), then for the Euclidean metric their masses (num_sums, B, S, J)."""

    def why_not(self, problem: Problem, options: SoftmaxOptions) -> str | None:
        if len(set(options.inverse_temperatures)) > 1:
            return "its kernel has one inverse temperature for all iterations"
        by_child = _goes_by_child(options, has_logits=problem.initial_logits is not None)
        return why_not_native(problem) or (why_not_count(problem, LARGEST_COUNT) if by_child else None)

    def room(self, inputs: SoftmaxInputs, keep_state: bool) -> Tensor:
        return inputs.votes.poses.new_empty(sum(_sizes(inputs)) if keep_state else 0)

    def forward(self, inputs: SoftmaxInputs, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        kept = state.numel() > 0
        if not kept:
            state = self.room(inputs, keep_state=True)  # the kernels work in it
        may_round = not kept and torch.get_float32_matmul_precision() == "medium"
        _call("forward", inputs, *outputs, *_parts(inputs, state), bfloat16=may_round)

    def backward(
        self, inputs: SoftmaxInputs, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]
    ) -> None:
        (grad_poses,) = arriving
        if grad_poses is None:  # a caller may differentiate nothing
            grad_poses = state.new_zeros(*inputs.votes.parent_shape, inputs.votes.vote_size)
        targets = [gradients.get(name) for name in ("poses", "weight", "bias", "activations", "initial_logits")]
        sums, masses = _parts(inputs, state)
        of_queries = state.new_empty(_before_last(inputs, sums).shape) if "affine" in gradients else None
        _call("backward", inputs, sums, masses, grad_poses.contiguous(), *targets, of_queries)
        if of_queries is not None:
            gradients["affine"].copy_(_affine_gradient(inputs, _before_last(inputs, sums), of_queries))

    def couplings(self, inputs: SoftmaxInputs, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        _call("couplings", inputs, *_parts(inputs, state), ctypes.c_int64(iteration), *outputs)


def _goes_by_child(options: SoftmaxOptions, *, has_logits: bool) -> bool:
    """Whether lanes are parents; else they are samples: windows of examples."""
    return options.competition != 0 or has_logits or options.algorithm == SoftmaxAlgorithm.MAX_MIN


def _sizes(inputs: SoftmaxInputs) -> tuple[int, int]:
    """Entries of the sums and of the masses."""
    vectors = inputs.options.num_sums * prod(inputs.votes.parent_shape)
    has_masses = inputs.options.algorithm == SoftmaxAlgorithm.KMEANS_EUCLIDEAN
    return vectors * inputs.votes.vote_size, vectors if has_masses else 0


def _before_last(inputs: SoftmaxInputs, sums: Tensor) -> Tensor:
    """The sums that queries are made of: (num_sums - 1, B * S * J, D)."""
    return sums.view(inputs.options.num_sums, -1, inputs.votes.vote_size)[:-1]


def _affine_gradient(inputs: SoftmaxInputs, sums: Tensor, of_queries: Tensor) -> Tensor:
    """Of scale and shift, by the gradients of queries = (scale LayerNorm(sums) + shift) / sqrt(D)."""
    size = sums.shape[-1]
    normed = layer_norm(sums, (size,), eps=inputs.options.epsilon)
    return torch.stack(((of_queries * normed).sum((0, 1)), of_queries.sum((0, 1)))) / sqrt(size)


def _parts(inputs: SoftmaxInputs, state: Tensor) -> tuple[Tensor, ...]:
    return state.contiguous().split(_sizes(inputs))


def _call(
    entry: str, inputs: SoftmaxInputs, *arguments: Tensor | ctypes.c_int64 | None, bfloat16: bool = False
) -> None:
    """Calls torchcaps_softmax_<entry>."""
    votes, options = inputs.votes.contiguous(), inputs.options
    alphas = doubles(options.alphas)
    affine = None if inputs.affine is None else inputs.affine.double().contiguous()
    partial, logits = (
        None if value is None else value.contiguous() for value in (inputs.partial, inputs.initial_logits)
    )
    struct = SoftmaxOptionsStruct(
        algorithm=options.algorithm,
        iterations=options.num_sums,
        leaky=options.leaky,
        detach=options.detach,
        amend=votes.activations is not None,
        competition=options.competition,
        bfloat16=bfloat16,
        squash_k=options.squash_k,
        inverse_temperature=options.inverse_temperatures[0] if options.inverse_temperatures else 1.0,
        epsilon=options.epsilon,
        alphas=ctypes.addressof(alphas),
        affine=pointer(affine),
        partial=pointer(partial),
    )
    *samples, num_parents = votes.parent_shape
    lanes = num_parents if _goes_by_child(options, has_logits=logits is not None) else prod(samples)
    call(f"softmax_{entry}", lanes, votes, struct, logits, *arguments)
