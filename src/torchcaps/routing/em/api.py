"""EM routing: the public function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from torchcaps.checks import check_choice, check_count, check_positive
from torchcaps.routing.backend import solve
from torchcaps.routing.em.common import ACTIVATIONS, KAPPA
from torchcaps.routing.em.lowering import LOWERING
from torchcaps.routing.em.reference import em
from torchcaps.routing.learned import per_parent
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.routing.result import RoutingResult
from torchcaps.schedules import routing_lambda
from torchcaps.votes import Votes, as_votes

EM = Algorithm("em", em, lowering=LOWERING)

LambdaSchedule = float | Sequence[float] | Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class EMOptions:
    """What only EM routing knows; one lambda and one inverse temperature for each iteration, betas (J,)."""

    lambdas: tuple[float, ...]
    inverse_temperatures: tuple[float, ...]
    beta_a: Tensor
    beta_u: Tensor
    eps_var: float
    cost_scale: str
    activation: str
    damping: float
    detach_couplings: bool


def em_routing(
    votes: Votes | Tensor,
    activations: Tensor | None = None,
    *,
    beta_a: Tensor | float,
    beta_u: Tensor | float,
    num_iterations: int = 3,
    lambda_schedule: LambdaSchedule = routing_lambda,
    inverse_temperature: float | Sequence[float] = 1.0,
    eps_var: float = 1e-6,
    cost_scale: str = "mass",
    activation: str = "mdl",
    damping: float = 0.0,
    detach_couplings: bool = False,
    competition: str = "global",
    initial_logits: Tensor | None = None,
    mask: Tensor | None = None,
    backend: str = "auto",
    return_trace: bool = False,
) -> RoutingResult:
    r"""Routing as a mixture of Gaussians fitted by EM (Hinton, Sabour, Frosst 2018).

    Children are data points of weight a_i, parents are Gaussians with diagonal covariance. The M-step, with
    :math:`r_{ij} = R_{ij} a_i` and :math:`m_j = \sum_i r_{ij}`,

    .. math::
        \mu_j = \sum_i r_{ij} V_{ij} / m_j, \quad
        \sigma_j^2 = \sum_i r_{ij} (V_{ij} - \mu_j)^2 / m_j + eps, \quad
        a_j = sigmoid(\lambda_t \kappa (\beta_a - \frac{m_j}{\bar m} \sum_h (\beta_u + \ln \sigma_j^h)))

    and the E-step :math:`R_i = softmax_j(T_t (\ln a_j + \ln p_{ij}))` alternate; the last M-step ends it.

    Args:
        votes: tensor (B, I, J, D) or a description.
        activations: a_i (B, I), when the votes do not carry them.
        beta_a, beta_u: numbers or (J,), one per parent type.
        num_iterations: T >= 1.
        lambda_schedule: a number, one per iteration, or a function of the 0-based iteration; default
            0.01 (1 - 0.95^(t + 1)).
        inverse_temperature: T of the E-step, a number or one per iteration (T_t belongs to the E-step that follows
            M-step t; the last one serves the trace alone). ln p sums D entries, so that couplings of new networks are
            nearly 0 or 1 at T = 1; with 1 / D they start soft, and three iterations learn.
        eps_var: added to every variance.
        cost_scale: "mass": mbar is the mean mass of a parent at the start and kappa = 100, so that the activation does
            not depend on how many children a layer has; "paper": mbar = kappa = 1.
        activation: "mdl" (above); "mixing": the share of the mass, as in a mixture; "entropy": mdl of unit mass.
        damping: in [0, 1): the mean becomes (1 - damping) new + damping old, old = 0 before the first M-step; variances
            are taken about the damped mean.
        detach_couplings: R, and the old mean of `damping`, are constants for the gradient, and only the last M-step
            carries any. From t = 3 on the gradient through the couplings of a new network is so large and so erratic
            that it may learn nothing.
        competition: "global" (the paper's meaning): a child shares itself among all positions that see it; "window":
            within each window separately; "position": among the positions that see it, for each parent type by itself,
            first couplings 1 / J.
        initial_logits, mask, backend, return_trace: as in :func:`dynamic_routing`. The trace's objective is the
            negative log-likelihood, at inverse temperature T the free energy
            :math:`-\frac{1}{T} \sum_i a_i \ln \sum_j (a_j p_{ij})^T`; under "position" the inner sum is over positions,
            the outer one over children and types. Only "mixing" with one fixed T promises that it falls, under any
            competition and damping, while variances are far above eps_var.

    Shapes:
        capsules: poses mu (B, *positions, J, D), activations (B, *positions, J)

    Example:
        >>> import torch
        >>> result = em_routing(torch.randn(2, 6, 3, 16), torch.rand(2, 6), beta_a=0.0, beta_u=0.0)
        >>> result.coupling.sum(-1).allclose(torch.ones(2, 6))
        True
    """
    check_count("num_iterations", num_iterations)
    description = as_votes(votes, activations=activations, mask=mask)
    if description.activations is None:
        raise ValueError("EM routing weighs children by their activations; give activations (B, I), ones if unknown")
    options = EMOptions(
        lambdas=routing_lambdas(lambda_schedule, num_iterations),
        inverse_temperatures=_one_per_iteration("inverse_temperature", inverse_temperature, num_iterations),
        beta_a=per_parent("beta_a", beta_a, description),
        beta_u=per_parent("beta_u", beta_u, description),
        eps_var=check_positive("eps_var", eps_var),
        cost_scale=check_choice("cost_scale", cost_scale, KAPPA),
        activation=check_choice("activation", activation, ACTIVATIONS),
        damping=_share("damping", damping),
        detach_couplings=detach_couplings,
    )
    problem = pose_problem(
        EM,
        description,
        options,
        competition=competition,
        initial_logits=initial_logits,
        return_trace=return_trace,
    )
    return solve(problem, backend)


def routing_lambdas(lambda_schedule: LambdaSchedule = routing_lambda, num_iterations: int = 3) -> tuple[float, ...]:
    """The inverse temperature of the activation in each iteration, with the defaults of `em_routing`."""
    if callable(lambda_schedule):
        lambda_schedule = [lambda_schedule(iteration) for iteration in range(num_iterations)]
    return _one_per_iteration("lambda_schedule", lambda_schedule, num_iterations)


def _one_per_iteration(name: str, values: float | Sequence[float], num_iterations: int) -> tuple[float, ...]:
    values = values if isinstance(values, Sequence) else [values] * num_iterations
    if len(values) != num_iterations:
        raise ValueError(f"{name} needs one number for each of the {num_iterations} iterations, got {len(values)}")
    return tuple(check_positive(name, value) for value in values)


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1), the share of the old mean, 0 for none, got {value!r}")
    return float(value)
