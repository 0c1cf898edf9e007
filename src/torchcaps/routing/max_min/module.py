"""Max-min routing as a module."""

from torch import Tensor

from torchcaps.routing.max_min.api import max_min_routing
from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing


@register_routing("max_min", english="max-min", chinese="最大最小路由", cost=cost_of_sums)
class MaxMinRouting(FunctionRouting):
    """:func:`torchcaps.routing.max_min_routing` with its options fixed."""

    function = staticmethod(max_min_routing)

    def __init__(
        self,
        *,
        num_iterations: int = 3,
        squash_k: float = 1.0,
        detach_couplings: bool = False,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
