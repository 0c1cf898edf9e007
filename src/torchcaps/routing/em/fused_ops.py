"""The operators behind fused EM routing: forward, backward and couplings as torch sees them."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.native import library
from torchcaps.native.lowering import DTYPES, KernelVotes
from torchcaps.native.struct import EmOptionsStruct, pointer

REGISTER_BYTES = 32  # the kernels pad parents to whole registers


class EmKernelOptions(NamedTuple):
    """Options as the kernels take them.

    Attributes:
        sharpness: lambda_t kappa of each iteration.
        inverse_temperature: of the E-step that follows each M-step.
        eps_var: added to every variance.
        damping: share of the old mean in the new one.
        competition: index into KINDS.
        activation: index into ACTIVATIONS.
        scale_by_mass: costs are divided by the mean mass of a parent at the start.
        detach: couplings are constants for the gradient.
    """

    sharpness: Sequence[float]
    inverse_temperature: Sequence[float]
    eps_var: float
    damping: float
    competition: int
    activation: int
    scale_by_mass: bool
    detach: bool


@torch.library.custom_op("torchcaps::em_routing", mutates_args=())
def em_kernel(
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
    beta_a: Tensor,
    beta_u: Tensor,
    sharpness: Sequence[float],
    inverse_temperature: Sequence[float],
    eps_var: float,
    damping: float,
    competition: int,
    activation: int,
    scale_by_mass: bool,
    detach: bool,
    keep_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parents of the votes, and the Gaussians of every iteration if they are to be kept.

    Shapes:
        result: poses (B, S, J, D), activations and their logits (B, S, J; for mixing log a, without a gradient),
            state (B, T, S, vectors, 2 D + 2, lanes) or empty
    """
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = EmKernelOptions(
        sharpness, inverse_temperature, eps_var, damping, competition, activation, scale_by_mass, detach
    )
    out_poses, out_activations, out_logits, state = _empty_results(votes, len(sharpness), keep_state)
    kept = state if keep_state else None
    _call("forward", votes, (beta_a, beta_u), options, out_poses, out_activations, out_logits, kept)
    return out_poses, out_activations, out_logits, state


@em_kernel.register_fake
def _(poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows, *rest):
    votes = KernelVotes(poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows)
    sharpness, keep_state = rest[2], rest[-1]
    return _empty_results(votes, len(sharpness), keep_state)


@torch.library.custom_op("torchcaps::em_routing_backward", mutates_args=())
def em_kernel_backward(
    grad_poses: Tensor,
    grad_activations: Tensor,
    grad_logits: Tensor | None,
    state: Tensor,
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
    beta_a: Tensor,
    beta_u: Tensor,
    sharpness: Sequence[float],
    inverse_temperature: Sequence[float],
    eps_var: float,
    damping: float,
    competition: int,
    activation: int,
    scale_by_mass: bool,
    detach: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (poses, weight, bias, activations, beta_a, beta_u); that of no bias is empty."""
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = EmKernelOptions(
        sharpness, inverse_temperature, eps_var, damping, competition, activation, scale_by_mass, detach
    )
    to_poses, to_weight, to_bias, to_activations, to_beta_a, to_beta_u = _empty_gradients(poses, weight, bias, beta_a)
    targets = to_poses, to_activations, to_weight, None if bias is None else to_bias, to_beta_a, to_beta_u
    arriving = [
        None if tensor is None else tensor.contiguous() for tensor in (state, grad_poses, grad_activations, grad_logits)
    ]
    _call("backward", votes, (beta_a, beta_u), options, *arriving, *targets)
    return to_poses, to_weight, to_bias, to_activations, to_beta_a, to_beta_u


@em_kernel_backward.register_fake
def _(grad_poses, grad_activations, grad_logits, state, poses, weight, bias, *rest):
    return _empty_gradients(poses, weight, bias, rest[7])


@torch.library.custom_op("torchcaps::em_couplings", mutates_args=())
def em_couplings(
    state: Tensor,
    iteration: int,
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
    beta_a: Tensor,
    beta_u: Tensor,
    sharpness: Sequence[float],
    inverse_temperature: Sequence[float],
    eps_var: float,
    damping: float,
    competition: int,
    activation: int,
    scale_by_mass: bool,
    detach: bool,
) -> tuple[Tensor, Tensor]:
    """Couplings (B, S, N, J) of one M-step, and the log-likelihood (B,) of the Gaussians they come from.

    Before the first M-step there are no Gaussians, and the log-likelihood is 0.
    """
    votes = KernelVotes(
        poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows
    ).contiguous()
    options = EmKernelOptions(
        sharpness, inverse_temperature, eps_var, damping, competition, activation, scale_by_mass, detach
    )
    couplings, likelihood = _empty_couplings(votes)
    number = ctypes.c_int64(iteration)
    _call("coupling", votes, (beta_a, beta_u), options, state.contiguous(), number, couplings, likelihood)
    return couplings, likelihood


@em_couplings.register_fake
def _(
    state, iteration, poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows, *rest
):
    return _empty_couplings(
        KernelVotes(poses, weight, bias, activations, offset, child, transform, child_mask, window_mask, rows)
    )


def _save_for_backward(ctx, inputs, output) -> None:
    *inputs, keep_state = inputs
    state = output[-1]
    ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)  # or autograd would fill a tensor as large as the state with zeros
    ctx.keep_state, ctx.shapes = keep_state, (output[0].shape, output[1].shape)
    ctx.tensors = [isinstance(value, Tensor) for value in inputs]
    ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.save_for_backward(state, *(value for value in inputs if isinstance(value, Tensor)))


def _differentiate(ctx, grad_poses, grad_activations, grad_logits, _) -> tuple:
    if not ctx.keep_state:
        raise RuntimeError("em_routing was called with keep_state=False, which leaves nothing to differentiate")
    state, *tensors = ctx.saved_tensors
    rest = iter(tensors)
    inputs = [next(rest) if is_tensor else other for is_tensor, other in zip(ctx.tensors, ctx.others, strict=True)]
    grad_poses, grad_activations = (
        state.new_zeros(shape) if gradient is None else gradient
        for gradient, shape in zip((grad_poses, grad_activations), ctx.shapes, strict=True)
    )
    to_poses, to_weight, to_bias, to_activations, *to_betas = em_kernel_backward(
        grad_poses, grad_activations, grad_logits, state, *inputs
    )
    bias, activations = inputs[2], inputs[3]
    found = (to_poses, to_weight, None if bias is None else to_bias, None if activations is None else to_activations)
    return (*found, *(None for _ in range(6)), *to_betas, *(None for _ in range(9)))


def _refuse_double_backward(ctx, *_) -> tuple:
    raise RuntimeError(
        "the fused routing kernels are differentiable once; for gradients of gradients use backend='reference'"
    )


em_kernel.register_autograd(_differentiate, setup_context=_save_for_backward)
em_kernel_backward.register_autograd(_refuse_double_backward)


def _empty_results(votes: KernelVotes, num_iterations: int, keep_state: bool) -> tuple[Tensor, ...]:
    batch_size, poses = votes.poses.shape[0], votes.poses
    parents = (batch_size, votes.num_windows, votes.num_parents)
    lanes = REGISTER_BYTES // poses.element_size()
    vectors = -(-votes.num_parents // lanes)
    record = (vectors, 2 * votes.vote_size + 2, lanes)
    return (
        poses.new_empty(*parents, votes.vote_size),
        poses.new_empty(parents),
        poses.new_empty(parents),
        poses.new_empty((batch_size, num_iterations, votes.num_windows, *record) if keep_state else 0),
    )


def _empty_gradients(poses: Tensor, weight: Tensor, bias: Tensor | None, beta: Tensor) -> tuple[Tensor, ...]:
    """Contiguous room for the gradients of poses, weight, bias, activations, beta_a and beta_u."""
    return (
        poses.new_empty(poses.shape),
        poses.new_empty(weight.shape),
        poses.new_empty(0 if bias is None else bias.shape),
        poses.new_empty(poses.shape[:2]),
        poses.new_empty(beta.shape),
        poses.new_empty(beta.shape),
    )


def _empty_couplings(votes: KernelVotes) -> tuple[Tensor, Tensor]:
    batch_size, poses = votes.poses.shape[0], votes.poses
    return (
        poses.new_empty(batch_size, votes.num_windows, votes.num_slots, votes.num_parents),
        poses.new_empty(batch_size),
    )


def _call(
    entry: str,
    votes: KernelVotes,
    betas: tuple[Tensor, Tensor],
    options: EmKernelOptions,
    *arguments: Tensor | ctypes.c_int64 | None,
) -> None:
    """Calls torchcaps_em_<entry> for the dtype of the votes."""
    votes_struct = votes.struct()
    beta_a, beta_u = (beta.contiguous() for beta in betas)
    sharpness, inverse_temperature = (
        (ctypes.c_double * len(values))(*values) for values in (options.sharpness, options.inverse_temperature)
    )
    options_struct = EmOptionsStruct(
        iterations=len(options.sharpness),
        competition=options.competition,
        activation=options.activation,
        scale_by_mass=options.scale_by_mass,
        detach=options.detach,
        variance_epsilon=options.eps_var,
        damping=options.damping,
        sharpness=ctypes.addressof(sharpness),
        inverse_temperature=ctypes.addressof(inverse_temperature),
        beta_a=pointer(beta_a),
        beta_u=pointer(beta_u),
    )
    addresses = [
        argument if isinstance(argument, ctypes.c_int64) else ctypes.c_void_p(pointer(argument))
        for argument in arguments
    ]
    library.call(
        f"torchcaps_em_{entry}_{DTYPES[votes.poses.dtype]}",
        ctypes.byref(votes_struct),
        ctypes.byref(options_struct),
        *addresses,
        library.num_threads(),
    )
