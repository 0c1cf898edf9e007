"""Nothing is timed before it is right: values and gradients of every backend against the float64 reference."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.benchmark.cases import COMPILE, FASTEST, Case
from torchcaps.benchmark.workload import Workload
from torchcaps.routing import Backend, solvers
from torchcaps.routing.backend import REFERENCE

# Largest error, relative to the largest entry of the reference's tensor.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


class MismatchError(RuntimeError):
    """A backend disagrees with the reference; `checks` tells where."""

    def __init__(self, checks: "Sequence[Check]") -> None:
        wrong = sorted({f"{check.backend} on {check.case}" for check in checks if not check.passed})
        super().__init__(f"refusing to time: {', '.join(wrong)} disagree(s) with the float64 reference")
        self.checks = checks


@dataclass(frozen=True, kw_only=True)
class Check:
    """One backend on one case in one precision.

    Attributes:
        refused: why the backend does not take the case; then there are no errors.
        value_error, gradient_error: the largest over all tensors, relative to the reference's largest entry.
    """

    case: str
    backend: str
    dtype: str
    tolerance: float
    value_error: float | None = None
    gradient_error: float | None = None
    refused: str | None = None

    @property
    def passed(self) -> bool:
        errors = (self.value_error, self.gradient_error)
        return self.refused is not None or all(error is not None and error <= self.tolerance for error in errors)


def verify(cases: Iterable[Case], extra: Sequence[Backend] = ()) -> list[Check]:
    """Check every backend that the cases time, rivals included, on smaller layers of the same kind.

    Args:
        cases: what will be timed.
        extra: further backends to check.

    Raises:
        MismatchError: with all checks, if one of them fails.
    """
    checks = []
    for case in cases:
        candidates = [name for name in case.variants if name not in (REFERENCE, COMPILE)]
        checks += _check_case(case.smaller(), case.name, [*candidates, *extra])
        for rival in case.rivals:
            label = f"{case.name}: {rival.name}"
            checks += _check_case(case.smaller().with_routing(rival.routing, **rival.options), label, [FASTEST])
    if not all(check.passed for check in checks):
        raise MismatchError(checks)
    return checks


def _check_case(case: Case, label: str, candidates: Sequence[str | Backend]) -> Iterator[Check]:
    expected_values, expected_gradients = Workload(case, dtype=torch.float64).values_and_gradients(REFERENCE)
    for dtype, tolerance in TOLERANCES.items():
        workload = Workload(case, dtype=dtype)
        for candidate in candidates:
            name = candidate if isinstance(candidate, str) else candidate.name
            same = {"case": label, "backend": name, "dtype": str(dtype).removeprefix("torch."), "tolerance": tolerance}
            refused = workload.why_not(candidate) if isinstance(candidate, str) else None
            if refused is not None:
                yield Check(**same, refused=refused)
                continue
            with _several_chunks():
                values, gradients = workload.values_and_gradients(candidate)
            yield Check(
                **same,
                value_error=largest_error(values, expected_values),
                gradient_error=largest_error(gradients, expected_gradients),
            )


def largest_error(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """Largest difference relative to the largest expected entry; None counts as zeros, NaN as infinitely wrong."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        present = ours if theirs is None else theirs
        if present is None:
            continue
        zeros = torch.zeros(present.shape, dtype=torch.float64)
        ours, theirs = (zeros if tensor is None else tensor.cpu().double() for tensor in (ours, theirs))
        error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
        worst = max(worst, error if error < float("inf") else float("inf"))
    return worst


@contextmanager
def _several_chunks() -> Iterator[None]:
    """Small layers would fit into one chunk, which is the reference itself."""
    before, solvers.CHUNK_BYTES = solvers.CHUNK_BYTES, 1
    try:
        yield
    finally:
        solvers.CHUNK_BYTES = before
