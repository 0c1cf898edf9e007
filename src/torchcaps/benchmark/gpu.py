"""The kernels of GPUs: right before they are timed, and what can be told of them without a GPU.

Nobody has timed them yet: this was written without a GPU. `examine_static` compiles for one that need not be there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from torchcaps.benchmark.cases import COMPILE, GPU, Case, make_cases, select
from torchcaps.benchmark.verify import Check, MismatchError, largest_error
from torchcaps.benchmark.workload import Workload
from torchcaps.checks import check_choice
from torchcaps.environment import environment
from torchcaps.routing import use_backend
from torchcaps.routing.backend import REFERENCE

VARIANTS = (REFERENCE, COMPILE, "chunked", GPU)
LAYERS = ("digitcaps", "em-conv-14")  # timed and examined unless others are named
WARM_UP, REPEATS = 3, 20


class Kind(NamedTuple):
    """Numbers that kernels compute with: their type, how products of float32 are rounded, and how wrong they may be."""

    name: str
    dtype: torch.dtype
    precision: str
    tolerance: float


KINDS = (
    Kind("float64", torch.float64, "highest", 1e-9),
    Kind("float32", torch.float32, "highest", 2e-4),
    Kind("float32, tf32x3", torch.float32, "high", 2e-4),
    Kind("float32, tf32", torch.float32, "medium", 0.05),
    Kind("bfloat16", torch.bfloat16, "highest", 0.1),
)


def small_cases() -> list[Case]:
    """Every routing that has a kernel, on every kind of layer, with sizes that fill no tile."""
    dense = Case(name="dense", layer="dense", batch_size=5, num_children=7, num_parents=3, in_size=5, out_size=7)
    conv = Case(
        name="conv", layer="conv", batch_size=2, num_children=2, num_parents=3, spatial=(6, 5), kernel_size=3, stride=2,
        pose="matrix",
    )  # fmt: skip
    classes = replace(dense, name="class", layer="class", spatial=(3, 2), num_children=2)
    placed = replace(classes, name="class, matrices", pose="matrix", in_size=9, out_size=9)  # coordinates are added
    wide = replace(dense, name="wide", batch_size=20, num_parents=100, in_size=20, out_size=32)  # products of tiles
    layers = (dense, conv, classes, placed, wide)
    routings: tuple[tuple[str, dict[str, Any]], ...] = (
        ("dynamic", {}),
        ("dynamic", {"leaky": True}),
        ("dynamic", {"detach_couplings": True}),
        ("kmeans", {}),
        ("kmeans", {"metric": "euclidean"}),
        ("entropy", {}),
        ("em", {"activation": "mdl"}),
        ("em", {"activation": "mixing", "damping": 0.2}),
        ("em", {"activation": "entropy", "inverse_temperature": 0.25}),
        *((name, {}) for name in ("uniform", "max_min", "vb", "heinsen", "self")),
    )
    cases = [
        replace(layer, name=f"{routing}, {layer.name} {options}", routing=routing, options=options)
        for layer in layers
        for routing, options in routings
    ]
    return cases + [
        replace(conv, name=f"{routing}, conv, {kind}", routing=routing, options={"competition": kind})
        for routing in ("dynamic", "max_min", "em", "vb")
        for kind in ("window", "global", "position")
    ]


def check_on(device: str, cases: Iterable[Case], kinds: Sequence[Kind] = KINDS) -> Iterator[Check]:
    """Values and gradients of the Triton backend on a device against the float64 reference on the CPU."""
    for case in cases:
        expected_values, expected_gradients = Workload(case, dtype=torch.float64).values_and_gradients(REFERENCE)
        for kind in kinds:
            workload = Workload(case, dtype=kind.dtype, device=device)
            same: dict[str, Any] = {"case": case.name, "backend": GPU, "dtype": kind.name, "tolerance": kind.tolerance}
            refused = workload.why_not(GPU)
            if refused is not None:
                yield Check(**same, refused=refused)
                continue
            with rounding(kind.precision):
                values, gradients = workload.values_and_gradients(GPU)
            yield Check(
                **same,
                value_error=largest_error(values, expected_values),
                gradient_error=largest_error(gradients, expected_gradients),
            )


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Inside the block products of float32 are rounded like this, as torch names it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def run_on_gpu(
    names: Sequence[str] = (), *, device: str = "cuda", tell: Callable[[str], object] = lambda message: None
) -> dict[str, Any]:
    """Check every kernel, then time layers: eager, compiled, in chunks and by the kernels.

    Raises:
        MismatchError: if a kernel is wrong; nothing is timed then.
        ValueError: if there is no GPU.
    """
    if not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; `--static sm_90` tells what can be known without one")
    tell("checking every kernel against the float64 reference")
    checks = list(check_on(device, small_cases()))
    if not all(check.passed for check in checks):
        raise MismatchError(checks)
    results: dict[str, Any] = {
        "environment": environment() | {"gpu": torch.cuda.get_device_name()},
        "roofline": {
            "bytes_per_second": measure_bandwidth(device),
            "flops_per_second": measure_flops(device),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
        "verified": [asdict(check) for check in checks],
        "cases": [],
    }
    for case in select(make_cases(quick=False), names or LAYERS):
        tell(f"timing {case.name}")
        variants = _time_case(case, device)
        for figures in variants.values():
            figures.update(shares(case, figures, results["roofline"]))
        results["cases"].append({"case": case.to_dict(), "variants": variants})
    return results


def measure_bandwidth(device: str) -> float:
    """Bytes a second of a large copy: what no kernel that reads memory can exceed."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / (_milliseconds(lambda: target.copy_(source)) / 1000)


def measure_flops(device: str) -> float:
    """FLOP a second of a large product, rounded as torch is set: what no kernel that computes can exceed."""
    size = 4096
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    return 2 * size**3 / (_milliseconds(lambda: left @ right) / 1000)


def shares(case: Case, figures: dict[str, Any], roofline: dict[str, Any]) -> dict[str, float]:
    """The least time that a device needs, for the bytes that must move or for the FLOP, as a share of what it took."""
    least = max(
        case.bytes_moved() / roofline["bytes_per_second"],
        case.flops() / roofline["flops_per_second"],
    )
    times = {name: figures[f"{name}_ms"] / 1000 for name in ("forward", "forward_backward") if f"{name}_ms" in figures}
    passes = {"forward": 1, "forward_backward": 3}
    return {f"{name}_roofline": passes[name] * least / time for name, time in times.items()}


def _time_case(case: Case, device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variant in VARIANTS:
        workload = Workload(case, device=device)
        if (reason := workload.why_not(variant)) is not None:
            found[variant] = {"refused": reason}
            continue
        if variant == COMPILE:
            workload.compile()
        torch.cuda.reset_peak_memory_stats()
        found[variant] = {
            "forward_ms": _milliseconds(partial(workload.forward, variant)),
            "forward_backward_ms": _milliseconds(partial(workload.forward_backward, variant)),
            "peak_bytes": torch.cuda.max_memory_allocated(),
        }
    return found


def _milliseconds(call: Callable[[], Any]) -> float:
    """Median of calls between two events of the device."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def examine_static(target: str, names: Sequence[str] = (), *, batch_size: int | None = None) -> list[dict[str, Any]]:
    """What a forward and backward pass of layers starts on a GPU of this kind, compiled here.

    Args:
        target: such as "sm_90".
        names: of the cases.
        batch_size: instead of that of the cases.
    """
    from torchcaps.gpu.availability import why_not_triton
    from torchcaps.gpu.static import TARGETS, examine, on_paper

    check_choice("static", target, TARGETS)
    if (reason := why_not_triton()) is not None:
        raise ValueError(reason)
    found = []
    for case in select(make_cases(quick=False), names or LAYERS):
        case = replace(case, batch_size=batch_size or case.batch_size)
        with on_paper(), use_backend(GPU):
            workload = Workload(case)
            launches = examine(target, partial(workload.forward_backward, GPU))
        kernels: dict[str, dict[str, Any]] = {}
        for launch in launches:
            label = f"{launch.kernel}, {launch.registers} registers"
            kernels.setdefault(label, asdict(launch) | {"launches": 0})["launches"] += 1
        found.append(
            {
                "case": case.description,
                "target": target,
                "launches": len(launches),
                "flops": 3 * case.flops(),
                "bytes": 3 * case.bytes_moved(),
                "kernels": list(kernels.values()),
            }
        )
    return found
