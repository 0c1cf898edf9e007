"""Dynamic, K-Means and entropy routing on the fused CPU kernels.

The three are one computation, :math:`c_i = softmax_j(\\langle \\hat u_{ij}, q_j \\rangle)` and
:math:`s_j = \\sum_i c_{ij} \\hat u_{ij}` by turns, and differ in how the next query q follows from the sums s (see
csrc/softmax_options.h). The forward pass keeps the sums of every iteration and nothing that grows with the number of
votes; couplings are computed again when they are asked for.
"""

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.native.lowering import DTYPES, KernelVotes, lower, why_not_lower
from torchcaps.native.struct import SoftmaxOptionsStruct, pointer
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import LinearVotes


class SoftmaxAlgorithm(IntEnum):
    """The numbers of csrc/softmax_options.h."""

    DYNAMIC = 0
    KMEANS_DOT = 1
    KMEANS_EUCLIDEAN = 2
    ENTROPY = 3


class SoftmaxOptions(NamedTuple):
    """What distinguishes one softmax routing from another.

    Attributes:
        algorithm: a SoftmaxAlgorithm.
        num_sums: weighted sums, one more than there are coupling updates.
        detach: only the last weighted sum carries gradients.
        alphas: of the entropy routing, one per weighted sum.
    """

    algorithm: int
    num_sums: int
    detach: bool = False
    squash_k: float = 1.0
    inverse_temperature: float = 1.0
    alphas: Sequence[float] = ()


class SoftmaxKernel:
    """The fused form of an algorithm whose options become SoftmaxOptions.

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
        if problem.competition != "window" and problem.votes.windows is not None:
            return "its kernel has window competition only"
        if problem.initial_logits is not None:
            return "its kernel starts from zero logits, initial_logits were given"
        return self.why_not_options(problem.options) or why_not_lower(problem.votes)

    def run(self, problem: Problem) -> RoutingResult:
        assert isinstance(problem.votes, LinearVotes)
        votes = lower(problem.votes)
        if not problem.amend:
            votes = votes._replace(activations=None)
        arguments = (*votes, problem.partial, problem.leaky, *self.translate(problem.options))
        poses_MJD, sums, masses = softmax_routing(*arguments)
        poses = poses_MJD.view(-1, *problem.votes.positions, problem.votes.num_parents, problem.votes.vote_size)

        def last_coupling() -> Tensor:
            with torch.no_grad():
                return softmax_couplings(sums, masses, *arguments).view(problem.votes.coupling_shape)

        return RoutingResult(Capsules.from_poses(poses), last_coupling, reads=arguments)


@torch.library.custom_op("torchcaps::softmax_routing", mutates_args=())
def softmax_routing(
    poses: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activations: Tensor | None,
    offset: Tensor | None,
    child: Tensor | None,
    transform: Tensor | None,
    child_mask: Tensor | None,
    window_mask: Tensor | None,
    rows: int,
    partial: Tensor | None,
    leaky: bool,
    algorithm: int,
    num_sums: int,
    detach: bool,
    squash_k: float,
    inverse_temperature: float,
    alphas: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Parents of the votes, and what the backward pass needs of the iterations.

    Activations are given only when couplings are multiplied by them.

    Shapes:
        result: poses (B * S, J, D), sums (num_sums, B * S, J, D), masses (num_sums, B * S, J) or empty
    """
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = SoftmaxOptions(algorithm, num_sums, detach, squash_k, inverse_temperature, alphas)
    out, sums, masses = _empty_results(votes, options)
    _call("forward", votes, options, partial, leaky, out, sums, masses)
    return out, sums, masses


@softmax_routing.register_fake
def _(
    poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows, partial, leaky, *options
):
    votes = KernelVotes(poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows)
    return _empty_results(votes, SoftmaxOptions(*options))


@torch.library.custom_op("torchcaps::softmax_routing_backward", mutates_args=())
def softmax_routing_backward(
    grad_out: Tensor,
    sums: Tensor,
    masses: Tensor,
    wanted: Sequence[bool],
    poses: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activations: Tensor | None,
    offset: Tensor | None,
    child: Tensor | None,
    transform: Tensor | None,
    child_mask: Tensor | None,
    window_mask: Tensor | None,
    rows: int,
    partial: Tensor | None,
    leaky: bool,
    algorithm: int,
    num_sums: int,
    detach: bool,
    squash_k: float,
    inverse_temperature: float,
    alphas: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (poses, weight, bias, activations); those that are not `wanted` are empty."""
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = SoftmaxOptions(algorithm, num_sums, detach, squash_k, inverse_temperature, alphas)
    gradients = _empty_gradients((votes.poses, votes.weight, votes.bias, votes.activations), wanted)
    targets = [gradient if asked else None for gradient, asked in zip(gradients, wanted, strict=True)]
    _call("backward", votes, options, partial, leaky, sums, masses, grad_out.contiguous(), *targets)
    return gradients


@softmax_routing_backward.register_fake
def _(grad_out, sums, masses, wanted, poses, weight, bias, activations, *rest):
    return _empty_gradients((poses, weight, bias, activations), wanted)


@torch.library.custom_op("torchcaps::softmax_couplings", mutates_args=())
def softmax_couplings(
    sums: Tensor,
    masses: Tensor,
    poses: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activations: Tensor | None,
    offset: Tensor | None,
    child: Tensor | None,
    transform: Tensor | None,
    child_mask: Tensor | None,
    window_mask: Tensor | None,
    rows: int,
    partial: Tensor | None,
    leaky: bool,
    algorithm: int,
    num_sums: int,
    detach: bool,
    squash_k: float,
    inverse_temperature: float,
    alphas: Sequence[float],
) -> Tensor:
    """The couplings of the last weighted sum, (B * S, N, J), computed again."""
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = SoftmaxOptions(algorithm, num_sums, detach, squash_k, inverse_temperature, alphas)
    couplings = _empty_couplings(votes)
    last = ctypes.c_int64(num_sums - 1)
    _call("couplings", votes, options, partial, leaky, sums, masses, last, couplings)
    return couplings


@softmax_couplings.register_fake
def _(sums, masses, poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows, *rest):
    return _empty_couplings(
        KernelVotes(poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows)
    )


def _save_for_backward(ctx, inputs, output) -> None:
    _, sums, masses = output
    ctx.mark_non_differentiable(sums, masses)
    ctx.tensors = [isinstance(value, Tensor) for value in inputs]
    ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(sums, masses, *(value for value in inputs if isinstance(value, Tensor)))


def _differentiate(ctx, grad_out, *_) -> tuple:
    sums, masses, *tensors = ctx.saved_tensors
    rest = iter(tensors)
    inputs = [next(rest) if is_tensor else other for is_tensor, other in zip(ctx.tensors, ctx.others, strict=True)]
    wanted = list(ctx.needs_input_grad[:4])
    gradients = softmax_routing_backward(grad_out, sums, masses, wanted, *inputs)
    found = [gradient if asked else None for gradient, asked in zip(gradients, wanted, strict=True)]
    return (*found, *(None for _ in inputs[4:]))


def _refuse_double_backward(ctx, *_) -> tuple:
    raise RuntimeError(
        "the fused routing kernels are differentiable once; for gradients of gradients use backend='reference'"
    )


softmax_routing.register_autograd(_differentiate, setup_context=_save_for_backward)
softmax_routing_backward.register_autograd(_refuse_double_backward)


def _empty_results(votes: KernelVotes, options: SoftmaxOptions) -> tuple[Tensor, Tensor, Tensor]:
    num_samples = votes.poses.shape[0] * votes.num_windows
    vectors = (num_samples, votes.num_parents, votes.vote_size)
    has_masses = options.algorithm == SoftmaxAlgorithm.KMEANS_EUCLIDEAN
    return (
        votes.poses.new_empty(vectors),
        votes.poses.new_empty(options.num_sums, *vectors),
        votes.poses.new_empty(options.num_sums if has_masses else 0, *vectors[:2]),
    )


def _empty_gradients(
    inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None], wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Contiguous room for the gradients of poses, weight, bias and activations."""

    def room(index: int) -> Tensor:
        value = inputs[index]
        return inputs[0].new_empty(value.shape if value is not None and wanted[index] else 0)

    return room(0), room(1), room(2), room(3)


def _empty_couplings(votes: KernelVotes) -> Tensor:
    return votes.poses.new_empty(votes.poses.shape[0] * votes.num_windows, votes.num_slots, votes.num_parents)


def _call(
    entry: str,
    votes: KernelVotes,
    options: SoftmaxOptions,
    partial: Tensor | None,
    leaky: bool,
    *arguments: Tensor | ctypes.c_int64 | None,
) -> None:
    """Calls torchcaps_softmax_<entry> for the dtype of the votes."""
    votes_struct = votes.struct()
    alphas = (ctypes.c_double * len(options.alphas))(*options.alphas)
    partial = None if partial is None else partial.contiguous()
    options_struct = SoftmaxOptionsStruct(
        algorithm=options.algorithm,
        iterations=options.num_sums,
        leaky=leaky,
        detach=options.detach,
        amend=votes.activations is not None,
        squash_k=options.squash_k,
        inverse_temperature=options.inverse_temperature,
        alphas=ctypes.addressof(alphas),
        partial=pointer(partial),
    )
    addresses = [
        argument if isinstance(argument, ctypes.c_int64) else ctypes.c_void_p(pointer(argument))
        for argument in arguments
    ]
    library.call(
        f"torchcaps_softmax_{entry}_{DTYPES[votes.poses.dtype]}",
        ctypes.byref(votes_struct),
        ctypes.byref(options_struct),
        *addresses,
        library.num_threads(),
    )
