"""Variational Bayes routing as a module, with its threshold learned."""

from typing import ClassVar

from torchcaps.routing.module import LearningRouting, options_of
from torchcaps.routing.registry import register_routing
from torchcaps.routing.vb.api import vb_routing

UPDATE, EXPECTATION = 6, 2  # FLOP: mean, squared deviation, spread; log-density from the squared deviation


@register_routing(
    "vb",
    english="variational Bayes",
    chinese="变分贝叶斯路由",
    cost=lambda num_iterations: UPDATE * num_iterations + EXPECTATION * (num_iterations - 1),
    unlearned={"learn": False},
)
class VBRouting(LearningRouting):
    """:func:`torchcaps.routing.vb_routing` with its options fixed and its betas learned, one each per parent type.

    Args:
        learn: False for betas of 0: then a parent is active by its share and entropy alone.
        num_iterations: and all others are options of the function.
    """

    function = staticmethod(vb_routing)
    learns = ("beta_a", "beta_u")
    start: ClassVar = {"beta_a": 0.0, "beta_u": 0.0}
    unlearned: ClassVar = {"beta_a": 0.0, "beta_u": 0.0}
    parents_are_means = True
    activations_are_lengths = False
    weighs_children = True

    def __init__(
        self,
        *,
        learn: bool = True,
        num_iterations: int = 3,
        alpha0: float = 1.0,
        kappa0: float = 1.0,
        psi0: float = 1.0,
        nu0: float | None = None,
        detach_couplings: bool = False,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
