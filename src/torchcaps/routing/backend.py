"""Backends: how a routing problem is solved, and why one of them does not take it.

`reference` is eager torch and the specification; `chunked` is the same computation for a few examples at a time,
recomputed in the backward pass; `fused` never forms the votes. "auto" takes the first that has no reason to refuse;
a backend asked for by name raises its reason instead of falling back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import torch

from torchcaps.checks import check_choice
from torchcaps.precision import HALVES, is_mixed, without_autocast
from torchcaps.routing.chunks import solve_in_chunks, split
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult

# The chunked backend forms at most this many bytes of votes at a time, but always one example's, and more where the
# weights are large: every chunk makes a gradient of their size, so that too many chunks would only move weights.
CHUNK_BYTES = 8 * 2**20  # on a CPU, whose caches are small and whose calls are cheap
CHUNK_SHARE_OF_WEIGHTS = 0.25
# Other devices have many more units to keep busy, and every call costs a launch: chunks are a share of their memory.
# The reference of EM keeps ten tensors of the size of its votes, so that a chunk takes about a sixth of the device.
CHUNK_SHARE_OF_MEMORY = 1 / 64
LEAST_CHUNK_BYTES = 64 * 2**20
USUAL_MEMORY = 16 * 2**30  # of a device that does not tell


class Backend(Protocol):
    """Solves routing problems."""

    name: str

    def why_not(self, problem: Problem) -> str | None:
        """Why this backend does not take the problem, from metadata only; None if it does."""

    def run(self, problem: Problem) -> RoutingResult:
        """Solve the problem."""


class Reference:
    """The specification in eager torch, on any device, in any floating-point type but float16."""

    name = "reference"

    def why_not(self, problem: Problem) -> str | None:
        return None

    def run(self, problem: Problem) -> RoutingResult:
        return problem.algorithm.reference(problem)


class Chunked:
    """The reference for a few examples at a time: memory is set by the chunk, not by the batch.

    Examples are independent, so this is exact; with several chunks each is solved again in the backward pass.
    """

    name = "chunked"

    def why_not(self, problem: Problem) -> str | None:
        if torch.compiler.is_compiling():
            return "chunks would tie a compiled graph to one batch size"
        return None

    def run(self, problem: Problem) -> RoutingResult:
        batch_size = problem.votes.example.shape[0]
        device = problem.votes.example.device
        most = max(
            chunk_bytes(device.type, total_memory(device)), int(CHUNK_SHARE_OF_WEIGHTS * problem.votes.weight_bytes)
        )
        chunk_size = max(1, most * batch_size // max(1, votes_bytes(problem)))
        if chunk_size >= batch_size:
            return problem.algorithm.reference(problem)
        return solve_in_chunks(problem, chunk_size)


class Fused:
    """Kernels of the device of the votes, which are never formed."""

    name = "fused"

    def why_not(self, problem: Problem) -> str | None:
        lowering = problem.algorithm.lowering
        return f"{problem.algorithm.name} routing has no kernel" if lowering is None else lowering.why_not(problem)

    def run(self, problem: Problem) -> RoutingResult:
        assert problem.algorithm.lowering is not None
        result = problem.algorithm.lowering.run(problem)
        if problem.return_trace and result.trace is None:
            # A trace is a record without gradients: what the kernel does not keep, another backend tells.
            witness = Reference() if torch.compiler.is_compiling() else Chunked()
            with torch.no_grad():
                result.trace = witness.run(problem).trace
        return result


BACKENDS: tuple[Backend, ...] = (Fused(), Chunked(), Reference())
NAMES = ("auto", *(backend.name for backend in BACKENDS))

_chosen: ContextVar[str | Backend] = ContextVar("torchcaps_backend", default="auto")
_chosen_to_compile: str | Backend = "auto"  # the same for compilers: they guard on a global but read no ContextVar
_open_blocks: list[list[str | Backend]] = [["auto"]]  # of all threads: what a compiler reads never outlives its block
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
        check_choice("backend", backend, NAMES)
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


def solve(problem: Problem, backend: str = "auto") -> RoutingResult:
    """Solve the problem with the backend that was asked for, or the first that takes it.

    Every backend works without autocast: what comes in 16 bits from a block of mixed precision is solved, and answered,
    in float32, and its gradients go back in its own type.
    """
    check_choice("backend", backend, NAMES)
    device_type = problem.votes.example.device.type
    if not is_mixed(device_type):
        return _solve(problem, backend)
    tensors, rebuild = split(problem)
    with without_autocast(device_type):
        return _solve(rebuild([tensor.float() if tensor.dtype in HALVES else tensor for tensor in tensors]), backend)


def _solve(problem: Problem, backend: str) -> RoutingResult:
    chosen = _chosen_to_compile if torch.compiler.is_compiling() else _chosen.get()
    if backend != "auto" and chosen is not EXPLAINING:
        chosen = backend
    if not isinstance(chosen, str):
        return chosen.run(problem)
    if chosen == "auto":
        return _first_willing(problem).run(problem)
    named = next(candidate for candidate in BACKENDS if candidate.name == chosen)
    reason = named.why_not(problem)
    if reason is not None:
        raise ValueError(f"backend {chosen!r} does not take this problem: {reason}; use backend='auto'")
    return named.run(problem)


def _first_willing(problem: Problem) -> Backend:
    if torch.compiler.is_exporting():  # an exported file must run without this package
        return BACKENDS[-1]
    return next(backend for backend in BACKENDS if backend.why_not(problem) is None)


@dataclass(frozen=True)
class Explanation:
    """What would run, and why not the others.

    Attributes:
        algorithm: name of the routing.
        chosen: name of the backend that "auto" takes.
        reasons: for each backend why it refuses, None if it would take the problem.
        votes_bytes: what the votes would occupy if they were formed.
    """

    algorithm: str
    chosen: str
    reasons: dict[str, str | None]
    votes_bytes: int

    def __str__(self) -> str:
        size = self.votes_bytes / 2**20
        lines = [f"{self.algorithm} routing runs on {self.chosen!r}; votes, if formed: {size:.1f} MiB"]
        lines += [f"  {name}: {'can run' if reason is None else reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


class _Explaining:
    """Answers a routing call with an explanation instead of a result."""

    name = "explaining"

    def why_not(self, problem: Problem) -> str | None:
        return None

    def run(self, problem: Problem) -> Any:
        return Explanation(
            algorithm=problem.algorithm.name,
            chosen=_first_willing(problem).name,
            reasons={backend.name: backend.why_not(problem) for backend in BACKENDS},
            votes_bytes=votes_bytes(problem),
        )


EXPLAINING = _Explaining()


def explain(routing: Callable[..., Any], *args: Any, **options: Any) -> Explanation:
    """What `routing(*args, **options)` would run and why; nothing is computed.

    Example:
        >>> import torch
        >>> from torchcaps.routing import dynamic_routing, explain
        >>> explain(dynamic_routing, torch.randn(2, 6, 3, 4)).reasons["reference"] is None
        True
    """
    token = _chosen.set(EXPLAINING)  # for this thread alone; nothing is compiled here
    try:
        return routing(*args, **options)
    finally:
        _chosen.reset(token)


def why_not(backend: str, routing: Callable[..., Any], *args: Any, **options: Any) -> str | None:
    """Why `backend` would not take `routing(*args, **options)`; None if it would."""
    return explain(routing, *args, **options).reasons[check_choice("backend", backend, NAMES[1:])]


def chunk_bytes(device_type: str, memory: int | None) -> int:
    """Votes that are formed at a time on a device with this much memory in all, None where it does not tell.

    Example:
        >>> [chunk_bytes(*device) // 2**20 for device in (("cpu", None), ("cuda", 24 * 2**30))]
        [8, 384]
    """
    if device_type == "cpu":
        return CHUNK_BYTES
    return max(LEAST_CHUNK_BYTES, int(CHUNK_SHARE_OF_MEMORY * (memory or USUAL_MEMORY)))


def total_memory(device: torch.device) -> int | None:
    """Memory of a device in all, not what is free now: the same problem is cut alike, and its results repeat."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def votes_bytes(problem: Problem) -> int:
    """What the votes of the whole batch would occupy."""
    *slots, num_parents = problem.votes.coupling_shape
    size = problem.votes.example.element_size() * problem.votes.vote_size * num_parents
    for count in slots:
        size *= count
    return size
