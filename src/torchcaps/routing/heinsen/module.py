"""Heinsen routing as a module, with the worth of using and ignoring a child learned."""

from typing import ClassVar

from torchcaps.routing.heinsen.api import heinsen_routing
from torchcaps.routing.module import LearningRouting, options_of
from torchcaps.routing.registry import register_routing

M_STEP, E_STEP = 6, 2  # FLOP: mean, squared deviation, variance; log-density from the squared deviation


@register_routing(
    "heinsen",
    english="Heinsen",
    chinese="Heinsen 路由",
    cost=lambda num_iterations: M_STEP * num_iterations + E_STEP * (num_iterations - 1),
    unlearned={"learn": False},
)
class HeinsenRouting(LearningRouting):
    """:func:`torchcaps.routing.heinsen_routing` with its options fixed and its betas learned.

    There is one of each per child and parent type, per child type where children share their transformations.

    Args:
        learn: False for betas of 1: then a parent is active if it has more than half of what there is.
        num_iterations: and all others are options of the function.
    """

    function = staticmethod(heinsen_routing)
    learns = ("beta_use", "beta_ignore")
    start: ClassVar = {"beta_use": 0.0, "beta_ignore": 0.0}
    unlearned: ClassVar = {"beta_use": 1.0, "beta_ignore": 1.0}
    parents_are_means = True
    activations_are_lengths = False
    weighs_children = True

    def __init__(
        self,
        *,
        learn: bool = True,
        num_iterations: int = 3,
        eps_var: float = 1e-6,
        detach_couplings: bool = False,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))

    def shape_of_learned(self, num_parents: int, vote_size: int, num_owners: int) -> tuple[int, ...]:
        return (num_owners, num_parents)
