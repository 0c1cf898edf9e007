"""Routing modules: each owns the options of one algorithm and what it learns. The maths is in the functions."""

import copy
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from torchcaps.routing.backend import plan
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes

PER_CALL = ("votes", "activations", "mask", "initial_logits", "return_trace")  # of a function, not of its module


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
        num_owners: int = 1,
        child_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Give this routing to one layer.

        Args:
            num_parents: J, parent types.
            vote_size: D, entries of a vote.
            num_owners: children of a window that may learn numbers of their own: all of them where each has
                transformations of its own, child types where these are shared.
            child_size: K, entries of a child's pose.
            device, dtype: of what is learned.
        """
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

    A subclass names its function. It may write out its options, so that editors show them, and pass them on with
    `super().__init__(**options_of(locals()))`; without a constructor of its own it takes those of the function.

    Args:
        **options: keyword-only options of `function`, except those that belong to a call and what is learned.

    Attributes:
        function: the algorithm.
        learns: arguments of the function that `learned` gives from parameters.
        options: all of them, those that were left out with their defaults.
    """

    function: ClassVar[Callable[..., RoutingResult]]
    learns: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Refuse unknown options in words; Python itself would not say what there is."""
        _check_names(cls, options, accepted(cls))
        return super().__new__(cls)

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = self.defaults() | options
        self.weighs_children = self.weighs_children or bool(self.options.get("amend"))
        self._check_options()

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The options of the function, with their defaults."""
        left_out = (*PER_CALL, *cls.learns)
        return {
            name: parameter.default
            for name, parameter in inspect.signature(cls.function).parameters.items()
            if name not in left_out and parameter.kind is not parameter.VAR_KEYWORD
        }

    def _check_options(self) -> None:
        """Let the function check the options: it is asked what it would do with votes that hold no numbers."""
        if "backend" not in self.options:  # functions with that option end where problems are solved
            return
        partial = self.options.get("partial")
        num_parents = len(partial) if isinstance(partial, Tensor) and partial.dim() else 1
        empty = {"device": "meta", "dtype": torch.float32}
        given = {"activations": torch.empty(1, 1, **empty)} if self.weighs_children else {}
        defaults = {name: inspect.signature(type(self).function).parameters[name].default for name in self.learns}
        learned = {name: 0.0 if value is inspect.Parameter.empty else value for name, value in defaults.items()}
        plan(type(self).function, torch.empty(1, 1, num_parents, 1, **empty), **given, **learned, **self.options)

    def update(self, **options: Any) -> None:
        """Change options of this routing, as a schedule does over training."""
        _check_names(type(self), options, self.options)
        before, self.options = self.options, self.options | options
        try:
            self._check_options()
        except Exception:
            self.options = before
            raise

    def updated(self, **options: Any) -> Self:
        """A copy with other options, what is learned included."""
        other = copy.deepcopy(self)
        other.update(**options)
        return other

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

    def learned(self) -> dict[str, Any]:
        """What the function takes from this module's parameters."""
        return {}

    def extra_repr(self) -> str:
        defaults = self.defaults()
        changed = {name: value for name, value in self.options.items() if not _is_same(value, defaults[name])}
        return ", ".join(f"{name}={value!r}" for name, value in changed.items())


class LearningRouting(FunctionRouting):
    """A routing whose function takes numbers that are learned, as parameters of the names in `learns`.

    Args:
        learn: False where nothing is learned, and the function gets `unlearned`.
        **options: see FunctionRouting.

    Attributes:
        start: value of each parameter at the start.
        unlearned: what the function gets instead where nothing is learned.
    """

    start: ClassVar[Mapping[str, float]]
    unlearned: ClassVar[Mapping[str, float | None]]

    def __init__(self, *, learn: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.learn = learn
        for name in self.learns:
            self.register_parameter(name, None)

    @property
    def is_learning(self) -> bool:
        """Whether there is something to learn."""
        return self.learn

    def shape_of_learned(self, num_parents: int, vote_size: int, num_owners: int) -> tuple[int, ...]:
        """Of every parameter; one number per parent type unless a subclass says otherwise."""
        return (num_parents,)

    def bind(
        self,
        num_parents: int,
        vote_size: int,
        *,
        num_owners: int = 1,
        child_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().bind(num_parents, vote_size, num_owners=num_owners, child_size=child_size, device=device, dtype=dtype)
        if self.is_learning:
            shape = self.shape_of_learned(num_parents, vote_size, num_owners)
            for name in self.learns:
                setattr(self, name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in self.learns:
            if (parameter := getattr(self, name)) is not None:
                nn.init.constant_(parameter, self.start[name])

    def learned(self) -> dict[str, Any]:
        if not self.is_learning:
            return dict(self.unlearned)
        if getattr(self, self.learns[0]) is None:
            raise ValueError(
                f"{type(self).__name__} has not learned {' and '.join(self.learns)} yet; give it to a layer, or call "
                "bind(num_parents, vote_size)"
            )
        return {name: getattr(self, name) for name in self.learns}

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [super().extra_repr(), "" if self.learn else "learn=False"]))


def options_of(local: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The options among the local names of a constructor, without `others`, which belong to the module."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__", *others)}


def accepted(kind: type[Routing]) -> dict[str, Any]:
    """What the constructor of a routing takes, with defaults: its own options, or those of its function."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if issubclass(kind, FunctionRouting) and any(each.kind is each.VAR_KEYWORD for each in parameters):
        own = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        return own | kind.defaults()
    return {each.name: each.default for each in parameters if each.kind is not each.VAR_KEYWORD}


def _check_names(kind: type[Routing], options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
            raise TypeError(f"{kind.__name__} has no option {name!r}{hint}")


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and not isinstance(value, Tensor) and value == default)
