"""Uniform routing as a module."""

from torch import Tensor

from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing
from torchcaps.routing.uniform.api import uniform_routing


@register_routing(
    "uniform",
    english="uniform (none)",
    chinese="均匀（不路由）",  # noqa: RUF001
    cost=lambda _: cost_of_sums(1),
)
class UniformRouting(FunctionRouting):
    """:func:`torchcaps.routing.uniform_routing` with its options fixed."""

    function = staticmethod(uniform_routing)

    def __init__(
        self,
        *,
        squash_k: float = 1.0,
        leaky: bool = False,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
