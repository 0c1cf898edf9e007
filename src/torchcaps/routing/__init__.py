"""Routing by agreement: children vote for the poses of parents, a routing clusters the votes.

"As many clustering algorithms, as many routings": each lives in a folder of its own and answers to one contract,
`xxx_routing(votes, *, options) -> RoutingResult`, with a module that fixes its options and owns what it learns.
"""

from torchcaps.routing import solvers as solvers  # registers the backends of this package
from torchcaps.routing.attention.module import AttentionRouting, attention_routing
from torchcaps.routing.backend import Backend, Plan, backend_names, plan, register_backend, solve, use_backend, why_not
from torchcaps.routing.competition import Competition
from torchcaps.routing.dynamic.module import DynamicRouting, dynamic_routing
from torchcaps.routing.em.module import EMRouting, em_routing
from torchcaps.routing.entropy.module import EntropyRouting, entropy_routing
from torchcaps.routing.heinsen.module import HeinsenRouting, heinsen_routing
from torchcaps.routing.kmeans.module import KMeansRouting, kmeans_routing
from torchcaps.routing.max_min.module import MaxMinRouting, max_min_routing
from torchcaps.routing.module import FunctionRouting, LearningRouting, Routing, options_of
from torchcaps.routing.ops.bodies import load_bodies
from torchcaps.routing.problem import Algorithm, Lowering, Problem, pose_problem
from torchcaps.routing.registry import (
    RoutingEntry,
    create_routing,
    entry_of,
    find_routing,
    is_scheduled,
    register_routing,
    routing_names,
)
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.routing.self.module import SelfRouting, self_routing
from torchcaps.routing.self_attention.module import SelfAttentionRouting, self_attention_routing
from torchcaps.routing.steps import agreement, per_example, weighted_sum
from torchcaps.routing.uniform.module import UniformRouting, uniform_routing
from torchcaps.routing.vb.module import VBRouting, vb_routing

__all__ = [
    "Algorithm",
    "AttentionRouting",
    "Backend",
    "Competition",
    "DynamicRouting",
    "EMRouting",
    "EntropyRouting",
    "FunctionRouting",
    "HeinsenRouting",
    "KMeansRouting",
    "LearningRouting",
    "Lowering",
    "MaxMinRouting",
    "Plan",
    "Problem",
    "Routing",
    "RoutingEntry",
    "RoutingResult",
    "SelfAttentionRouting",
    "SelfRouting",
    "TraceStep",
    "UniformRouting",
    "VBRouting",
    "agreement",
    "attention_routing",
    "backend_names",
    "create_routing",
    "dynamic_routing",
    "em_routing",
    "entropy_routing",
    "entry_of",
    "find_routing",
    "heinsen_routing",
    "is_scheduled",
    "kmeans_routing",
    "max_min_routing",
    "options_of",
    "per_example",
    "plan",
    "pose_problem",
    "register_backend",
    "register_routing",
    "routing_names",
    "self_attention_routing",
    "self_routing",
    "solve",
    "uniform_routing",
    "use_backend",
    "vb_routing",
    "weighted_sum",
    "why_not",
]

load_bodies()
