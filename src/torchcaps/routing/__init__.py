"""Routing by agreement: children vote for the poses of parents, a routing clusters the votes.

"As many clustering algorithms, as many routings": each lives in a folder of its own and answers to one contract,
`xxx_routing(votes, *, options) -> RoutingResult`.
"""

from torchcaps.routing.backend import Explanation, explain, use_backend, why_not
from torchcaps.routing.dynamic.api import dynamic_routing
from torchcaps.routing.em.api import em_routing
from torchcaps.routing.entropy.api import entropy_routing
from torchcaps.routing.kmeans.api import kmeans_routing
from torchcaps.routing.ops.bodies import load_bodies
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.uniform.api import uniform_routing

__all__ = [
    "Explanation",
    "RoutingResult",
    "TraceStep",
    "dynamic_routing",
    "em_routing",
    "entropy_routing",
    "explain",
    "kmeans_routing",
    "uniform_routing",
    "use_backend",
    "why_not",
]

load_bodies()
