"""Dynamic routing as a module."""

from torch import Tensor

from torchcaps.routing.dynamic.api import dynamic_routing
from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing


@register_routing("dynamic", english="dynamic", chinese="动态路由", cost=cost_of_sums)
class DynamicRouting(FunctionRouting):
    """:func:`torchcaps.routing.dynamic_routing` with its options fixed."""

    function = staticmethod(dynamic_routing)

    def __init__(
        self,
        *,
        num_iterations: int = 3,
        squash_k: float = 1.0,
        leaky: bool = False,
        detach_couplings: bool = False,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
