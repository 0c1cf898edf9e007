"""K-Means routing as a module."""

from torch import Tensor

from torchcaps.routing.kmeans.api import kmeans_routing
from torchcaps.routing.module import FunctionRouting, options_of
from torchcaps.routing.registry import cost_of_sums, register_routing


@register_routing(
    "kmeans",
    english="K-Means",
    chinese="K-Means 路由",
    scheduled=("inverse_temperature",),
    least_iterations=0,
    cost=lambda num_iterations: cost_of_sums(num_iterations + 1),
)
class KMeansRouting(FunctionRouting):
    """:func:`torchcaps.routing.kmeans_routing` with its options fixed."""

    function = staticmethod(kmeans_routing)

    def __init__(
        self,
        *,
        num_iterations: int = 3,
        metric: str = "dot",
        inverse_temperature: float | None = None,
        hard: bool = False,
        squash_k: float = 1.0,
        amend: bool = False,
        partial: float | Tensor | None = None,
        competition: str = "window",
        backend: str = "auto",
    ) -> None:
        super().__init__(**options_of(locals()))
        self.parents_are_means = metric == "euclidean"
