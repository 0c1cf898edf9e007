"""Entropy-regularised routing as a module."""

from collections.abc import Sequence

from torch import Tensor

from torchcaps.routing.entropy.api import entropy_routing
from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing


@register_routing("entropy", english="entropy", chinese="熵正则路由", cost=cost_of_sums)
class EntropyRouting(FunctionRouting):
    """:func:`torchcaps.routing.entropy_routing` with its options fixed; layers normalise their weights for it."""

    function = staticmethod(entropy_routing)
    normalise_weights = True

    def __init__(
        self,
        *,
        num_iterations: int = 3,
        alpha: float | Sequence[float] = 0.1,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
