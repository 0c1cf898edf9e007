"""The EM family: mixtures of Gaussians with diagonal covariance.

The votes are never formed: every iteration is one pass that computes each vote, weighs it by the Gaussians of the
iteration before and adds it to the sums of the next. Only the Gaussians of every iteration are kept, and only for a
backward pass, a trace or couplings; the derivation of the backward is in the README of EM routing. Members differ in
one thing, how the sums of a parent become its Gaussian and its activation: see EmMapping.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
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


class EmMapping(IntEnum):
    """From the sums of a parent (mass m, mean, spread) to its Gaussian, its weight and its activation.

    The numbers are those of csrc/em.h. An E-step has the logits ln w_j + ln N(V_ij; mean_j, variance_j). Where nothing
    else is said the mean is that of the votes, the variance their spread + eps_var, and a = w = sigmoid(x):

    - MDL, ENTROPY: x of EM routing, from beta_a, beta_u, sharpness, and for MDL the cost.
    - MIXING: a = w = m / (sum of m over all positions and types); there is no x, logits are ln a.
    - VB: mean M = sum_n r V / kappa, variance P / nu with P = psi0 + kappa0 M^2 + sum_n r (V - M)^2, ln w the rest of
      ln rho (a function of masses), x = beta_a - beta_u - exp(E ln pi) H; `prior` is (alpha0, kappa0, psi0, nu0). Who
      shares one vector of mixing weights follows from the competition; positions that do not exist have none.
    - HEINSEN: x_sj = threshold_sj + sum_n worth_nj r_snj over the slots n of a window, r = R a.
    - MASS: a = m, of one iteration: no E-step follows. Logits are m, too.
    """

    MDL = 0
    MIXING = 1
    ENTROPY = 2
    VB = 3
    HEINSEN = 4
    MASS = 5

    @property
    def has_logits(self) -> bool:
        """Whether activations are sigmoids."""
        return self not in (EmMapping.MIXING, EmMapping.MASS)


class EmKernelOptions(NamedTuple):
    """Options as the kernels take them.

    Attributes:
        mapping: an EmMapping.
        competition: index into KINDS.
        sharpness: lambda_t kappa of each iteration, of MDL and ENTROPY; its length is the number of iterations for all.
        inverse_temperatures: of the E-step that follows each M-step.
        eps_var: added to every variance, but for VB.
        damping: share of the old mean in the new one, 0 for VB.
        scale_by_mass: costs of MDL are divided by the mean mass of a parent at the start.
        detach: couplings are constants for the gradient.
        prior: (alpha0, kappa0, psi0, nu0) of VB, else empty.
    """

    mapping: int
    competition: int
    sharpness: Sequence[float]
    inverse_temperatures: Sequence[float]
    eps_var: float = 1e-6
    damping: float = 0.0
    scale_by_mass: bool = False
    detach: bool = False
    prior: Sequence[float] = ()


class EmInputs(NamedTuple):
    """What the operators take; activations of children must be among the votes.

    Shapes:
        beta_a, beta_u: (J,), of MDL, ENTROPY and VB
        worth: (C, J), of HEINSEN: slot n has the numbers n % C
        threshold: (B, S, J), of HEINSEN
        initial_logits: (B, S, N, J), or None for equal shares
    """

    votes: KernelVotes
    beta_a: Tensor | None
    beta_u: Tensor | None
    worth: Tensor | None
    threshold: Tensor | None
    initial_logits: Tensor | None
    options: EmKernelOptions


class EmBody(Body, Protocol):
    """A body of the EM family can also tell the parents of every iteration."""

    def parents(self, inputs: EmInputs, state: Tensor) -> tuple[Tensor, Tensor]:
        """From a state: means (B, T, S, J, D), and logits of the activations (B, T, S, J), ln a for MIXING."""


def _parent_shape(inputs: EmInputs) -> tuple[int, ...]:
    return inputs.votes.parent_shape


# Logits have no gradient for MIXING and MASS, which have no sigmoid. The log-likelihood is of the Gaussians that
# couplings come from, and of what stands in their place for VB: before the first M-step there are none, and it is 0.
EM = Operator(
    "em",
    EmInputs,
    differentiable=(
        *("poses", "weight", "bias", "activations"),
        *("beta_a", "beta_u", "worth", "threshold", "initial_logits"),
    ),
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


def betas(problem: Problem) -> dict[str, Tensor]:
    """What EM and variational routing learn."""
    return {"beta_a": problem.options.beta_a, "beta_u": problem.options.beta_u}


class EmLowering:
    """How an algorithm becomes a member of the EM family.

    Args:
        translate: from a problem to the options of the kernels.
        learned: from a problem to those of `beta_a`, `beta_u`, `worth` and `threshold` that its mapping has.
        tells: whether the log-likelihood of the Gaussians is the objective of its trace; if not, another backend
            tells what happened.
    """

    def __init__(
        self,
        translate: Callable[[Problem], EmKernelOptions],
        learned: Callable[[Problem], Mapping[str, Tensor]] = betas,
        *,
        tells: bool = True,
    ) -> None:
        self.translate, self.learned, self.tells = translate, learned, tells

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
        votes, learned = lower(problem.votes, windows_compete=windows_compete(problem)), self.learned(problem)
        return EmInputs(
            votes=votes,
            beta_a=learned.get("beta_a"),
            beta_u=learned.get("beta_u"),
            worth=learned.get("worth"),
            threshold=learned.get("threshold"),
            initial_logits=lower_logits(problem, votes),
            options=self.translate(problem),
        )

    def run(self, problem: Problem) -> RoutingResult:
        description, inputs = problem.votes, self.inputs(problem)
        values, tells = flatten(inputs), problem.return_trace and self.tells
        poses_BSJD, activations_BSJ, logits_BSJ, state = EM.forward(*values, needs_state(values) or tells)

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
        trace = _trace(problem, inputs, state.detach(), coupling_of) if tells else None
        last = len(inputs.options.sharpness) - 1
        has_logits = EmMapping(inputs.options.mapping).has_logits
        logits = logits_BSJ.view(capsules.activations.shape) if has_logits else None
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
    activations = logits.sigmoid() if EmMapping(inputs.options.mapping).has_logits else logits.exp()
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
