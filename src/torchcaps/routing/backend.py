"""Backends: how a routing problem is solved, and why one of them does not take it.

Backends are registered, in an order; `torchcaps.routing.solvers` has those of this package. "auto" takes the first that
has no reason to refuse; a backend asked for by name raises its reason instead of falling back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import torch

from torchcaps.checks import check_choice
from torchcaps.precision import HALVES, is_mixed, without_autocast
from torchcaps.routing.chunks import split
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult
from torchcaps.versions import is_exporting

AUTO = "auto"
REFERENCE = "reference"  # the specification; an exported file runs it, since it needs nothing of this package


class Backend(Protocol):
    """Solves routing problems.

    One that would run but should not be taken unasked has a method `why_not_unasked(problem)` like `why_not`.
    """

    name: str

    def why_not(self, problem: Problem) -> str | None:
        """Why this backend does not take the problem, from metadata only; None if it does."""

    def run(self, problem: Problem) -> RoutingResult:
        """Solve the problem."""


_backends: tuple[Backend, ...] = ()


def register_backend(backend: Backend, *, before: str | None = None) -> None:
    """Let routings be solved by another backend.

    Args:
        backend: see Backend.
        before: the name of the one that "auto" asks after it; None to be asked first of all.

    Example:
        >>> from torchcaps.routing import backend_names
        >>> backend_names()
        ('fused', 'triton', 'chunked', 'reference')
    """
    global _backends
    names = backend_names()
    if backend.name in (AUTO, *names):
        raise ValueError(f"there is a backend {backend.name!r} already, choose another name")
    place = 0 if before is None else names.index(check_choice("before", before, names))
    _backends = (*_backends[:place], backend, *_backends[place:])


def backend_names() -> tuple[str, ...]:
    """All backends in the order in which "auto" asks them; the reference, which takes everything, comes last."""
    return tuple(backend.name for backend in _backends)


_chosen: ContextVar[str | Backend] = ContextVar("torchcaps_backend", default=AUTO)
_chosen_to_compile: str | Backend = AUTO  # the same for compilers: they guard on a global but read no ContextVar
_open_blocks: list[list[str | Backend]] = [[AUTO]]  # of all threads: what a compiler reads never outlives its block
_blocks_lock = Lock()


@contextmanager
def use_backend(backend: str | Backend) -> Iterator[None]:
    """Solve every routing inside the block with `backend`, unless a call names its own.

    Example:
        >>> with use_backend("reference"):
        ...     pass
    """
    global _chosen_to_compile
    if isinstance(backend, str):
        check_choice("backend", backend, (AUTO, *backend_names()))
    token, block = _chosen.set(backend), [backend]
    with _blocks_lock:
        _open_blocks.append(block)
        _chosen_to_compile = backend
    try:
        yield
    finally:
        _chosen.reset(token)
        with _blocks_lock:
            _open_blocks[:] = [other for other in _open_blocks if other is not block]
            _chosen_to_compile = _open_blocks[-1][0]


def solve(problem: Problem, backend: str = AUTO) -> RoutingResult:
    """Solve the problem with the backend that was asked for, or the first that takes it.

    Every backend works without autocast: what comes in 16 bits from a block of mixed precision is solved, and answered,
    in float32, and its gradients go back in its own type.
    """
    check_choice("backend", backend, (AUTO, *backend_names()))
    device_type = problem.votes.example.device.type
    if not is_mixed(device_type):
        return _solve(problem, backend)
    tensors, rebuild = split(problem)
    with without_autocast(device_type):
        return _solve(rebuild([tensor.float() if tensor.dtype in HALVES else tensor for tensor in tensors]), backend)


def _solve(problem: Problem, backend: str) -> RoutingResult:
    chosen = _chosen_to_compile if torch.compiler.is_compiling() else _chosen.get()
    if backend != AUTO and chosen is not PLANNING:
        chosen = backend
    if not isinstance(chosen, str):
        return chosen.run(problem)
    if chosen == AUTO:
        return _first_willing(problem).run(problem)
    named = _named(chosen)
    reason = named.why_not(problem)
    if reason is not None:
        raise ValueError(f"backend {chosen!r} does not take this problem: {reason}; use backend='auto'")
    return named.run(problem)


def _named(name: str) -> Backend:
    return next(candidate for candidate in _backends if candidate.name == name)


def _first_willing(problem: Problem) -> Backend:
    if is_exporting():  # an exported file must run without this package
        return _named(REFERENCE)
    return next(
        backend
        for backend in _backends
        if backend.why_not(problem) is None and _why_not_unasked(backend, problem) is None
    )


def _why_not_unasked(backend: Backend, problem: Problem) -> str | None:
    """Why "auto" passes over a backend that would run; None if it does not."""
    asks = getattr(backend, "why_not_unasked", None)
    return None if asks is None else asks(problem)


@dataclass(frozen=True)
class Plan:
    """What would run, and why not the others.

    Attributes:
        algorithm: name of the routing.
        chosen: name of the backend that "auto" takes.
        reasons: for each backend why it refuses, None if it would take the problem.
        passed_over: for backends that would run but are not taken unasked, why not.
        votes_bytes: what the votes would occupy if they were formed.
    """

    algorithm: str
    chosen: str
    reasons: dict[str, str | None]
    votes_bytes: int
    passed_over: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        size = self.votes_bytes / 2**20
        lines = [f"{self.algorithm} routing runs on {self.chosen!r}; votes, if formed: {size:.1f} MiB"]
        for name, reason in self.reasons.items():
            unasked = f"; not unasked: {self.passed_over[name]}" if name in self.passed_over else ""
            lines.append(f"  {name}: {'can run' + unasked if reason is None else reason}")
        return "\n".join(lines)


class _Planning:
    """Answers a routing call with a plan instead of a result."""

    name = "planning"

    def why_not(self, problem: Problem) -> str | None:
        return None

    def run(self, problem: Problem) -> Any:
        reasons = {backend.name: backend.why_not(problem) for backend in _backends}
        willing = [backend for backend in _backends if reasons[backend.name] is None]
        unasked = {backend.name: _why_not_unasked(backend, problem) for backend in willing}
        return Plan(
            algorithm=problem.algorithm.name,
            chosen=_first_willing(problem).name,
            reasons=reasons,
            votes_bytes=problem.votes_bytes,
            passed_over={name: reason for name, reason in unasked.items() if reason is not None},
        )


PLANNING = _Planning()


def plan(routing: Callable[..., Any], *args: Any, **options: Any) -> Plan:
    """What `routing(*args, **options)` would run and why; nothing is computed.

    Example:
        >>> import torch
        >>> from torchcaps.routing import dynamic_routing, plan
        >>> plan(dynamic_routing, torch.randn(2, 6, 3, 4)).reasons["reference"] is None
        True
    """
    token = _chosen.set(PLANNING)  # for this thread alone; nothing is compiled here
    try:
        return routing(*args, **options)
    finally:
        _chosen.reset(token)


def why_not(backend: str, routing: Callable[..., Any], *args: Any, **options: Any) -> str | None:
    """Why `backend` would not take `routing(*args, **options)`; None if it would."""
    return plan(routing, *args, **options).reasons[check_choice("backend", backend, backend_names())]
