"""Routing modules: each owns the options of one algorithm, and EM its learned costs. The maths is in the functions.

A new routing is a function and a module like these; see `examples/new_routing.py`.
"""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice
from torchcaps.routing import (
    RoutingResult,
    dynamic_routing,
    em_routing,
    entropy_routing,
    explain,
    kmeans_routing,
    uniform_routing,
)
from torchcaps.routing.em.api import routing_lambdas
from torchcaps.routing.em.common import KAPPA
from torchcaps.trust import import_class
from torchcaps.votes import Votes

# Arguments of a routing function that belong to a call, not to a module.
BETAS = ("beta_a", "beta_u")
PER_CALL = ("votes", "activations", "mask", "initial_logits", "return_trace", *BETAS)

# Measured: parents of stacked matrix layers then start about half active (-1/2 ln variance of their votes is near 2).
START_BETA_U = 2.0


class Routing(nn.Module):
    """What a capsule layer asks of a routing: `routing(votes, return_trace=...) -> RoutingResult`.

    One instance belongs to one layer, which calls `bind` once: the moment to create what is learned per parent type.

    Attributes:
        normalise_weights: whether layers normalise their weights (Frobenius) for this routing unless told otherwise.
        parents_are_means: whether poses of parents are means of votes, which do not grow with the number of children.
        activations_are_lengths: of the poses, so that poses alone say what is there.
        weighs_children: whether votes count by the activations of the children.
    """

    normalise_weights: ClassVar[bool] = False
    parents_are_means = False
    activations_are_lengths = True
    weighs_children = False

    def __init__(self) -> None:
        super().__init__()
        self.is_bound = False

    def bind(
        self,
        num_parents: int,
        vote_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Give this routing to one layer with `num_parents` parent types and votes of `vote_size` entries."""
        if self.is_bound:
            raise ValueError(
                f"this {type(self).__name__} already belongs to a layer; give every layer a routing instance of its own"
            )
        self.is_bound = True

    def reset_parameters(self) -> None:
        """Set what is learned back to its start; nothing by default."""

    def forward(self, votes: Votes | Tensor, *, return_trace: bool = False) -> RoutingResult:
        raise NotImplementedError


class FunctionRouting(Routing):
    """A routing function with its options fixed and checked, as far as that is possible without votes.

    Args:
        **options: keyword-only options of `function`, except those that belong to a call.
    """

    function: ClassVar[Callable[..., RoutingResult]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        parameters = inspect.signature(self.function).parameters
        known = [name for name in parameters if name not in PER_CALL]
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
                raise TypeError(f"{type(self).__name__} has no option {name!r}{hint}")
        self.options = options
        self.weighs_children = self.weighs_children or bool(options.get("amend"))
        if "backend" in parameters:  # it ends where problems are solved
            self._check_options({name: 0.0 for name in BETAS if name in parameters})

    def _check_options(self, learned: dict[str, float]) -> None:
        """Let the function check the options: it is asked what it would do with votes that hold no numbers."""
        partial = self.options.get("partial")
        num_parents = len(partial) if isinstance(partial, Tensor) and partial.dim() else 1
        empty = {"device": "meta", "dtype": torch.float32}
        given = {"activations": torch.empty(1, 1, **empty)} if self.weighs_children else {}
        explain(type(self).function, torch.empty(1, 1, num_parents, 1, **empty), **given, **learned, **self.options)

    def forward(
        self,
        votes: Votes | Tensor,
        *,
        activations: Tensor | None = None,
        mask: Tensor | None = None,
        initial_logits: Tensor | None = None,
        return_trace: bool = False,
    ) -> RoutingResult:
        options = self.options
        if not self.training and options.get("partial") is not None:
            options = options | {"partial": None}  # like dropout, partial normalisation is for training
        return type(self).function(
            votes,
            activations=activations,
            mask=mask,
            initial_logits=initial_logits,
            return_trace=return_trace,
            **self.learned(),
            **options,
        )

    def learned(self) -> dict[str, Tensor | float]:
        """What the function takes from this module's parameters."""
        return {}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class DynamicRouting(FunctionRouting):
    """:func:`torchcaps.routing.dynamic_routing` with its options fixed."""

    function = staticmethod(dynamic_routing)


class UniformRouting(FunctionRouting):
    """:func:`torchcaps.routing.uniform_routing` with its options fixed."""

    function = staticmethod(uniform_routing)


class KMeansRouting(FunctionRouting):
    """:func:`torchcaps.routing.kmeans_routing` with its options fixed."""

    function = staticmethod(kmeans_routing)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parents_are_means = options.get("metric") == "euclidean"


class EntropyRouting(FunctionRouting):
    """:func:`torchcaps.routing.entropy_routing` with its options fixed; layers normalise their weights for it."""

    function = staticmethod(entropy_routing)
    normalise_weights = True


class EMRouting(FunctionRouting):
    """:func:`torchcaps.routing.em_routing` with its options fixed and its costs learned.

    `beta_a` is stored in logit units: what enters the formula is beta_a / (lambda kappa) with the lambda of the last
    iteration. Lambda is about 0.001, so that an optimiser could not move a raw beta_a. "mixing" has no costs.

    Args:
        shared_betas: one beta_a and beta_u for all parent types instead of one each.
        **options: those of the function; `num_iterations` and `lambda_schedule` fix the lambdas.
    """

    function = staticmethod(em_routing)
    parents_are_means = True
    activations_are_lengths = False
    weighs_children = True

    def __init__(self, *, shared_betas: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.shared_betas = shared_betas
        self.register_parameter("beta_a", None)
        self.register_parameter("beta_u", None)

    def bind(
        self,
        num_parents: int,
        vote_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().bind(num_parents, vote_size, device=device, dtype=dtype)
        self.vote_size = vote_size
        if self.options.get("activation") == "mixing":
            return
        shape = () if self.shared_betas else (num_parents,)
        self.beta_a = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.beta_u = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.beta_a is not None:
            nn.init.zeros_(self.beta_a)
            entries = self.vote_size if self.options.get("activation") == "entropy" else 1  # there beta_u enters once
            nn.init.constant_(self.beta_u, START_BETA_U * entries)

    def learned(self) -> dict[str, Tensor | float]:
        if self.options.get("activation") == "mixing":
            return {"beta_a": 0.0, "beta_u": 0.0}
        if self.beta_a is None:
            raise ValueError("EMRouting has no costs yet; give it to a layer, or call bind(num_parents, vote_size)")
        return {"beta_a": self.beta_a / self.logit_scale, "beta_u": self.beta_u}

    @property
    def logit_scale(self) -> float:
        """lambda kappa of the last iteration."""
        lambdas = routing_lambdas(
            **{k: v for k, v in self.options.items() if k in ("lambda_schedule", "num_iterations")}
        )
        return lambdas[-1] * KAPPA[self.options.get("cost_scale", "mass")]

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [super().extra_repr(), "shared_betas=True" if self.shared_betas else ""]))


ROUTINGS: dict[str, type[Routing]] = {
    "dynamic": DynamicRouting,
    "em": EMRouting,
    "entropy": EntropyRouting,
    "kmeans": KMeansRouting,
    "uniform": UniformRouting,
}


def create_routing(name: str, **options: Any) -> Routing:
    """A routing module by name, or by import path "package.module:Class" for one of your own.

    Example:
        >>> create_routing("kmeans", num_iterations=2)
        KMeansRouting(num_iterations=2)
    """
    if not isinstance(name, str):
        raise TypeError(
            f"a model takes a routing by its name, such as 'kmeans' or 'package.module:Class', and its options as "
            f"routing_options, got {name!r}; layers take modules"
        )
    if ":" not in name:
        return ROUTINGS[check_choice("routing", name, ROUTINGS)](**options)
    kind = import_class(name, Routing, what="routing", public_name="torchcaps.nn.Routing")
    return kind(**options)
