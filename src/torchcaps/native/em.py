"""The EM family on the CPU."""

import ctypes

from torch import Tensor

from torchcaps.native.calls import LARGEST_COUNT, REGISTER_BYTES, call, doubles, why_not_count, why_not_native
from torchcaps.native.struct import EmOptionsStruct, pointer
from torchcaps.routing.ops.em import EmInputs, EmKernelOptions, EmMapping
from torchcaps.routing.problem import Problem


class NativeEm:
    """Its state is (B, T, S, vectors, 2 D + 2, lanes): for each register of parents mean, variance, logit and mass."""

    def why_not(self, problem: Problem, options: EmKernelOptions) -> str | None:
        if (mapping := EmMapping(options.mapping)) > EmMapping.ENTROPY:
            return f"the kernels of the CPU do not have {mapping.name} yet"
        # the lines of its backward pass are four registers for each iteration, entry and register of parents
        return why_not_native(problem) or why_not_count(problem, LARGEST_COUNT // (4 * len(options.sharpness)))

    def room(self, inputs: EmInputs, keep_state: bool) -> Tensor:
        votes, poses = inputs.votes, inputs.votes.poses
        if not keep_state:
            return poses.new_empty(0)
        lanes = REGISTER_BYTES // poses.element_size()
        record = (-(-votes.num_parents // lanes), 2 * votes.vote_size + 2, lanes)
        return poses.new_empty(poses.shape[0], len(inputs.options.sharpness), votes.num_windows, *record)

    def forward(self, inputs: EmInputs, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        _call("forward", inputs, *outputs, state if state.numel() else None)

    def backward(
        self, inputs: EmInputs, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]
    ) -> None:
        votes = inputs.votes
        grad_poses, grad_activations, grad_logits = arriving
        arrived = [
            votes.poses.new_zeros(*votes.parent_shape, votes.vote_size) if grad_poses is None else grad_poses,
            votes.poses.new_zeros(votes.parent_shape) if grad_activations is None else grad_activations,
            grad_logits,
        ]
        arrived = [None if gradient is None else gradient.contiguous() for gradient in arrived]
        found = {"poses": votes.poses, "activations": votes.activations, "weight": votes.weight, "bias": votes.bias}
        found |= {"beta_a": inputs.beta_a, "beta_u": inputs.beta_u}
        targets = [None if value is None else _target(gradients, name, value) for name, value in found.items()]
        targets.append(gradients.get("initial_logits"))
        _call("backward", inputs, state.contiguous(), *arrived, *targets)

    def couplings(self, inputs: EmInputs, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        _call("coupling", inputs, state.contiguous(), ctypes.c_int64(iteration), *outputs)

    def parents(self, inputs: EmInputs, state: Tensor) -> tuple[Tensor, Tensor]:
        size = inputs.votes.vote_size
        records = state.movedim(-1, -2).flatten(3, 4)[..., : inputs.votes.num_parents, :]
        return records[..., :size], records[..., 2 * size]


def _target(gradients: dict[str, Tensor], name: str, value: Tensor) -> Tensor:
    """Where a gradient goes: the kernels find these, asked for or not."""
    return gradients[name] if name in gradients else value.new_empty(value.shape)


def _call(entry: str, inputs: EmInputs, *arguments: Tensor | ctypes.c_int64 | None) -> None:
    """Calls torchcaps_em_<entry>."""
    votes, options = inputs.votes.contiguous(), inputs.options
    beta_a, beta_u = inputs.beta_a.contiguous(), inputs.beta_u.contiguous()
    logits = None if inputs.initial_logits is None else inputs.initial_logits.contiguous()
    sharpness, inverse_temperatures = doubles(options.sharpness), doubles(options.inverse_temperatures)
    struct = EmOptionsStruct(
        iterations=len(options.sharpness),
        competition=options.competition,
        activation=options.mapping,
        scale_by_mass=options.scale_by_mass,
        detach=options.detach,
        variance_epsilon=options.eps_var,
        damping=options.damping,
        sharpness=ctypes.addressof(sharpness),
        inverse_temperature=ctypes.addressof(inverse_temperatures),
        beta_a=pointer(beta_a),
        beta_u=pointer(beta_u),
        initial_logits=pointer(logits),
    )
    call(f"em_{entry}", votes, struct, *arguments)
