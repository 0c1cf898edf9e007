"""The EM family: mixtures of Gaussians with diagonal covariance.

The votes are never formed: every iteration is one pass that computes each vote, weighs it by the Gaussians of the
iteration before and adds it to the sums of the next. Only the Gaussians of every iteration are kept, and only for a
backward pass, a trace or couplings; the derivation of the backward is in the README of EM routing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.routing.em.common import of_existing
from torchcaps.routing.ops.bodies import Body, find_body, why_no_body
from torchcaps.routing.ops.operator import Operator, flatten
from torchcaps.routing.ops.votes import (
    KernelVotes,
    lower,
    lower_logits,
    needs_state,
    why_not_lower,
    windows_compete,
)
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.votes import LinearVotes


class EmKernelOptions(NamedTuple):
    """Options as the kernels take them.

    Attributes:
        sharpness: lambda_t kappa of each iteration.
        inverse_temperatures: of the E-step that follows each M-step.
        eps_var: added to every variance.
        damping: share of the old mean in the new one.
        competition: index into KINDS.
        activation: index into ACTIVATIONS.
        scale_by_mass: costs are divided by the mean mass of a parent at the start.
        detach: couplings are constants for the gradient.
    """

    sharpness: Sequence[float]
    inverse_temperatures: Sequence[float]
    eps_var: float
    damping: float
    competition: int
    activation: int
    scale_by_mass: bool
    detach: bool


class EmInputs(NamedTuple):
    """What the operators take; activations of children must be among the votes.

    Shapes:
        beta_a, beta_u: (J,)
        initial_logits: (B, S, N, J), or None for equal shares
    """

    votes: KernelVotes
    beta_a: Tensor
    beta_u: Tensor
    initial_logits: Tensor | None
    options: EmKernelOptions


class EmBody(Body, Protocol):
    """A body of the EM family can also tell the parents of every iteration."""

    def parents(self, inputs: EmInputs, state: Tensor) -> tuple[Tensor, Tensor]:
        """From a state: means (B, T, S, J, D), and logits of the activations (B, T, S, J), ln a for "mixing"."""


def _parent_shape(inputs: EmInputs) -> tuple[int, ...]:
    return inputs.votes.parent_shape


# Logits have no gradient for "mixing", where they are ln a. The log-likelihood is of the Gaussians that couplings come
# from: before the first M-step there are none, and it is 0.
EM = Operator(
    "em",
    EmInputs,
    differentiable=("poses", "weight", "bias", "activations", "beta_a", "beta_u", "initial_logits"),
    outputs={
        "poses": lambda inputs: (*inputs.votes.parent_shape, inputs.votes.vote_size),
        "activations": _parent_shape,
        "logits": _parent_shape,
    },
    told={
        "couplings": lambda inputs: inputs.votes.coupling_shape,
        "log_likelihood": lambda inputs: inputs.votes.poses.shape[:1],
    },
)


class EmLowering:
    """How an algorithm becomes a member of the EM family; its options have `beta_a`, `beta_u` and `activation`.

    Args:
        translate: from a problem to the options of the kernels.
    """

    def __init__(self, translate: Callable[[Problem], EmKernelOptions]) -> None:
        self.translate = translate

    def why_not(self, problem: Problem) -> str | None:
        device_type = problem.votes.example.device.type
        return (
            why_not_lower(problem)
            or why_no_body(EM.family, device_type)
            or find_body(EM.family, device_type).why_not(problem, self.translate(problem))
        )

    def inputs(self, problem: Problem) -> EmInputs:
        """What the operators are asked."""
        assert isinstance(problem.votes, LinearVotes)
        votes, options = lower(problem.votes, windows_compete=windows_compete(problem)), problem.options
        return EmInputs(votes, options.beta_a, options.beta_u, lower_logits(problem, votes), self.translate(problem))

    def run(self, problem: Problem) -> RoutingResult:
        description, inputs = problem.votes, self.inputs(problem)
        values = flatten(inputs)
        poses_BSJD, activations_BSJ, logits_BSJ, state = EM.forward(
            *values, needs_state(values) or problem.return_trace
        )

        @torch.no_grad()
        def coupling_of(iteration: int) -> tuple[Tensor, Tensor]:
            """Couplings of an M-step, and the log-likelihood of the Gaussians they come from."""
            kept = state if state.numel() else EM.forward(*values, True)[-1]
            coupling_BSNJ, log_likelihood_B = EM.couplings(kept, iteration, *values)
            return coupling_BSNJ.view(description.coupling_shape), log_likelihood_B

        positions = (-1, *description.positions)
        capsules = Capsules(
            poses_BSJD.view(*positions, *poses_BSJD.shape[2:]),
            of_existing(activations_BSJ.view(*positions, activations_BSJ.shape[2]), description.window_mask),
        )
        trace = _trace(problem, inputs, state.detach(), coupling_of) if problem.return_trace else None
        last = len(inputs.options.sharpness) - 1
        logits = None if problem.options.activation == "mixing" else logits_BSJ.view(capsules.activations.shape)
        return RoutingResult(capsules, lambda: coupling_of(last)[0], trace, logits=logits, reads=values)


def _trace(
    problem: Problem, inputs: EmInputs, state: Tensor, coupling_of: Callable[[int], tuple[Tensor, Tensor]]
) -> tuple[TraceStep, ...]:
    """Every iteration as it happened, from the Gaussians that were kept."""
    votes, body = problem.votes, EM.body(inputs)
    # (B, T, S, J, ...) -> (B, T, *positions, J, ...)
    means, logits = (
        values.reshape(*values.shape[:2], *votes.positions, *values.shape[3:]) for values in body.parents(inputs, state)
    )
    activations = logits.exp() if problem.options.activation == "mixing" else logits.sigmoid()
    num_iterations = len(inputs.options.sharpness)
    couplings, log_likelihoods = zip(*(coupling_of(iteration) for iteration in range(num_iterations + 1)), strict=True)
    return tuple(
        TraceStep(
            couplings[iteration],
            means[:, iteration],
            of_existing(activations[:, iteration], votes.window_mask),
            -log_likelihoods[iteration + 1],  # of the Gaussians this iteration found
        )
        for iteration in range(num_iterations)
    )
