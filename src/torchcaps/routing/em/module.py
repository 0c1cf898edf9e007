"""EM routing as a module, with its costs learned."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.routing.em.api import LambdaSchedule, em_routing, routing_lambdas
from torchcaps.routing.em.common import KAPPA
from torchcaps.routing.module import LearningRouting, options_of
from torchcaps.routing.registry import register_routing
from torchcaps.schedules import routing_lambda

# Measured: parents of stacked matrix layers then start about half active (-1/2 ln variance of their votes is near 2).
START_BETA_U = 2.0

M_STEP, E_STEP = 6, 2  # FLOP: mean, squared deviation, variance; log-density from the squared deviation


@register_routing(
    "em",
    english="EM",
    chinese="EM 路由",
    scheduled=("inverse_temperature",),
    cost=lambda num_iterations: M_STEP * num_iterations + E_STEP * (num_iterations - 1),
    unlearned={"activation": "mixing"},
)
class EMRouting(LearningRouting):
    """:func:`torchcaps.routing.em_routing` with its options fixed and its costs learned.

    `beta_a` is stored in logit units: what enters the formula is beta_a / (lambda kappa) with the lambda of the last
    iteration. Lambda is about 0.001, so that an optimiser could not move a raw beta_a. "mixing" has no costs.

    Args:
        shared_betas: one beta_a and beta_u for all parent types instead of one each.
        num_iterations, lambda_schedule: they fix the lambdas; these and all others are options of the function.
    """

    function = staticmethod(em_routing)
    learns = ("beta_a", "beta_u")
    start: ClassVar = {"beta_a": 0.0, "beta_u": START_BETA_U}
    unlearned: ClassVar = {"beta_a": 0.0, "beta_u": 0.0}
    beta_a: nn.Parameter | None
    beta_u: nn.Parameter | None
    parents_are_means = True
    activations_are_lengths = False
    weighs_children = True

    def __init__(
        self,
        *,
        shared_betas: bool = False,
        num_iterations: int = 3,
        lambda_schedule: LambdaSchedule = routing_lambda,
        inverse_temperature: float | Sequence[float] = 1.0,
        eps_var: float = 1e-6,
        cost_scale: str = "mass",
        activation: str = "mdl",
        damping: float = 0.0,
        detach_couplings: bool = False,
        competition: str = "global",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals(), "shared_betas"))
        self.shared_betas = shared_betas

    @property
    def is_learning(self) -> bool:
        return self.options["activation"] != "mixing"

    def shape_of_learned(self, num_parents: int, vote_size: int, num_owners: int) -> tuple[int, ...]:
        self.vote_size = vote_size
        return () if self.shared_betas else (num_parents,)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.beta_u is not None and self.options["activation"] == "entropy":  # there beta_u enters once
            nn.init.constant_(self.beta_u, START_BETA_U * self.vote_size)

    def learned(self) -> dict[str, Tensor | float]:
        betas = super().learned()
        return {"beta_a": betas["beta_a"] / self.logit_scale, "beta_u": betas["beta_u"]}

    @property
    def logit_scale(self) -> float:
        """lambda kappa of the last iteration."""
        lambdas = routing_lambdas(self.options["lambda_schedule"], self.options["num_iterations"])
        return lambdas[-1] * KAPPA[self.options["cost_scale"]]

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [super().extra_repr(), "shared_betas=True" if self.shared_betas else ""]))
