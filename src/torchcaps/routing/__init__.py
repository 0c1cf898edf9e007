"""Routing by agreement: children vote for the poses of parents, a routing clusters the votes.

"As many clustering algorithms, as many routings": each lives in a folder of its own and answers to one contract,
`xxx_routing(votes, *, options) -> RoutingResult`.
"""

from torchcaps.routing.attention.api import attention_routing
from torchcaps.routing.backend import Explanation, explain, use_backend, why_not
from torchcaps.routing.dynamic.api import dynamic_routing
from torchcaps.routing.em.api import em_routing
from torchcaps.routing.entropy.api import entropy_routing
from torchcaps.routing.heinsen.api import heinsen_routing
from torchcaps.routing.kmeans.api import kmeans_routing
from torchcaps.routing.max_min.api import max_min_routing
from torchcaps.routing.ops.bodies import load_bodies
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.self.api import self_routing
from torchcaps.routing.self_attention.api import self_attention_routing
from torchcaps.routing.uniform.api import uniform_routing
from torchcaps.routing.vb.api import vb_routing

__all__ = [
    "Explanation",
    "RoutingResult",
    "TraceStep",
    "attention_routing",
    "dynamic_routing",
    "em_routing",
    "entropy_routing",
    "explain",
    "heinsen_routing",
    "kmeans_routing",
    "max_min_routing",
    "self_attention_routing",
    "self_routing",
    "uniform_routing",
    "use_backend",
    "vb_routing",
    "why_not",
]

load_bodies()
