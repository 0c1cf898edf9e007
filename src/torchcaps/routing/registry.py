"""All routings there are: one entry each, which whoever lists, names, schedules, times or draws routings reads.

A routing of this package is a folder beside this file and the line of `torchcaps.routing` that imports its module; one
from elsewhere is a class under `register_routing`, see `examples/new_routing.py`.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from torchcaps.checks import check_choice
from torchcaps.routing.module import Routing, accepted
from torchcaps.trust import import_class

Kind = TypeVar("Kind", bound=type[Routing])

# FLOP per entry of a vote, for each pass that a routing makes over it.
WEIGHTED_SUM, AGREEMENT = 2, 2


def cost_of_sums(num_sums: int) -> int:
    """FLOP per entry of a vote for so many weighted sums, with agreements between them.

    Example:
        >>> cost_of_sums(3)
        10
    """
    return WEIGHTED_SUM * num_sums + AGREEMENT * (num_sums - 1)


@dataclass(frozen=True, kw_only=True)
class RoutingEntry:
    """What is known of a routing.

    Attributes:
        name: as users give it.
        module: its class, which knows the function.
        english, chinese: its name for people.
        scheduled: options that may change over training.
        least_iterations: of `num_iterations`, if it has that option.
        cost: FLOP per entry of a vote of a forward pass, by the number of iterations; None if nobody counted.
        unlearned: options under which a network that was trained with another routing can use it: nothing is learned;
            None where that is impossible.
    """

    name: str
    module: type[Routing]
    english: str
    chinese: str
    scheduled: tuple[str, ...] = ()
    least_iterations: int = 1
    cost: Callable[[int], int] | None = None
    unlearned: Mapping[str, Any] | None = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function behind the module; None for a module that has none."""
        return getattr(self.module, "function", None)

    @property
    def options(self) -> dict[str, Any]:
        """What the module takes, with defaults."""
        return accepted(self.module)

    @property
    def iterates(self) -> bool:
        """Whether its number of iterations can be chosen."""
        return "num_iterations" in self.options

    def with_updates(self, num_updates: int) -> dict[str, int]:
        """Options with which couplings change so many times after the first, if there are iterations to choose.

        K-Means replaces them at the start of an iteration, the others after all iterations but the last.

        Example:
            >>> from torchcaps.routing import find_routing
            >>> find_routing("kmeans").with_updates(2), find_routing("em").with_updates(2)
            ({'num_iterations': 2}, {'num_iterations': 3})
        """
        return {"num_iterations": self.least_iterations + num_updates} if self.iterates else {}


_entries: dict[str, RoutingEntry] = {}


def register_routing(
    name: str,
    *,
    english: str | None = None,
    chinese: str | None = None,
    scheduled: tuple[str, ...] = (),
    least_iterations: int = 1,
    cost: Callable[[int], int] | None = None,
    unlearned: Mapping[str, Any] | None = MappingProxyType({}),
) -> Callable[[Kind], Kind]:
    """Give a routing module a name under which everything finds it; see RoutingEntry for the arguments.

    Example:
        >>> from torchcaps.routing import find_routing
        >>> find_routing("kmeans").english, find_routing("kmeans").least_iterations
        ('K-Means', 0)
    """
    if ":" in name or not name:
        raise ValueError(f"a name of a routing has no colon, which marks an import path, got {name!r}")

    def register(kind: Kind) -> Kind:
        known = _entries.get(name)
        if known is not None and _place(known.module) != _place(kind):  # the same file may be imported twice
            raise ValueError(f"there is a routing {name!r} already, {known.module.__name__}; choose another name")
        _entries[name] = RoutingEntry(
            name=name,
            module=kind,
            english=english or name,
            chinese=chinese or english or name,
            scheduled=scheduled,
            least_iterations=least_iterations,
            cost=cost,
            unlearned=unlearned,
        )
        return kind

    return register


def _place(kind: type) -> tuple[str | None, str]:
    return getattr(sys.modules.get(kind.__module__), "__file__", None), kind.__qualname__


def routing_names() -> tuple[str, ...]:
    """The names of all registered routings.

    Example:
        >>> from torchcaps.routing import routing_names
        >>> "em" in routing_names()
        True
    """
    return tuple(sorted(_entries))


def find_routing(name: str) -> RoutingEntry:
    """The entry of a name; an error says which there are."""
    return _entries[check_choice("routing", name, routing_names())]


def entry_of(routing: Routing | type[Routing]) -> RoutingEntry | None:
    """The entry of a module or its class; None for one that was not registered."""
    kind = routing if isinstance(routing, type) else type(routing)
    return next((entry for entry in _entries.values() if entry.module is kind), None)


def is_scheduled(routing: Routing, option: str) -> bool:
    """Whether an option of a module, or of one derived from a registered one, may change over training."""
    return any(option in entry.scheduled for entry in _entries.values() if isinstance(routing, entry.module))


def create_routing(name: str, **options: Any) -> Routing:
    """A routing module by name, or by import path "package.module:Class" for one of your own.

    Example:
        >>> from torchcaps.routing import create_routing
        >>> create_routing("kmeans", num_iterations=2)
        KMeansRouting(num_iterations=2)
    """
    if not isinstance(name, str):
        raise TypeError(
            f"a model takes a routing by its name, such as 'kmeans' or 'package.module:Class', and its options as "
            f"routing_options, got {name!r}; layers take modules"
        )
    if ":" not in name:
        return find_routing(name).module(**options)
    return import_class(name, Routing, what="routing", public_name="torchcaps.nn.Routing")(**options)
