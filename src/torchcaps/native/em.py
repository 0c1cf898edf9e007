"""The EM family on the CPU."""

import ctypes

from torch import Tensor

from torchcaps.native.calls import LARGEST_COUNT, call, doubles, why_not_count, why_not_native
from torchcaps.native.library import register_bytes
from torchcaps.native.struct import PRIOR, EmOptionsStruct, pointer
from torchcaps.routing.ops.em import EmInputs, EmKernelOptions
from torchcaps.routing.problem import Problem

LEARNED = ("beta_a", "beta_u", "worth", "threshold")


class NativeEm:
    """Its state is (B, T, S, vectors, 2 D + 3, lanes): for each register of parents mean, variance and three numbers.

    These are the logit of the activation, the log weight of the Gaussian in an E-step, and the mass.
    """

    def why_not(self, problem: Problem, options: EmKernelOptions) -> str | None:
        # the lines of its backward pass are four registers for each iteration, entry and register of parents
        return why_not_native(problem) or why_not_count(problem, LARGEST_COUNT // (4 * len(options.sharpness)))

    def room(self, inputs: EmInputs, keep_state: bool) -> Tensor:
        votes, poses = inputs.votes, inputs.votes.poses
        if not keep_state:
            return poses.new_empty(0)
        lanes = register_bytes(votes.num_parents * poses.element_size()) // poses.element_size()
        record = (-(-votes.num_parents // lanes), 2 * votes.vote_size + 3, lanes)
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
        found |= {name: getattr(inputs, name) for name in LEARNED}
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
    tensors = {name: getattr(inputs, name) for name in (*LEARNED, "initial_logits")}
    tensors = {name: None if tensor is None else tensor.contiguous() for name, tensor in tensors.items()}
    sharpness, inverse_temperatures = doubles(options.sharpness), doubles(options.inverse_temperatures)
    struct = EmOptionsStruct(
        iterations=len(options.sharpness),
        competition=options.competition,
        mapping=options.mapping,
        scale_by_mass=options.scale_by_mass,
        detach=options.detach,
        worth_types=1 if inputs.worth is None else inputs.worth.shape[0],
        variance_epsilon=options.eps_var,
        damping=options.damping,
        sharpness=ctypes.addressof(sharpness),
        inverse_temperature=ctypes.addressof(inverse_temperatures),
        **dict(zip(PRIOR, options.prior, strict=False)),
        **{name: pointer(tensor) for name, tensor in tensors.items()},
    )
    call(f"em_{entry}", votes.num_parents, votes, struct, *arguments)
