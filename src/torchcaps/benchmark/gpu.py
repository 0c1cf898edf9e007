"""The kernels of GPUs: right before they are timed, and what can be told of them without a GPU.

Nobody has timed them yet: this was written without a GPU. `examine_static` compiles for one that need not be there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

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
# By the type of the votes; float32 is computed as it is, whatever torch.set_float32_matmul_precision says.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.1}
WARM_UP, REPEATS = 3, 20


def small_cases() -> list[Case]:
    """Every routing that has a kernel, on every kind of layer, with sizes that fill no tile."""
    dense = Case(name="dense", layer="dense", batch_size=5, num_children=7, num_parents=3, in_size=5, out_size=7)
    conv = Case(
        name="conv", layer="conv", batch_size=2, num_children=2, num_parents=3, spatial=(6, 5), kernel_size=3, stride=2,
        pose="matrix",
    )  # fmt: skip
    classes = replace(dense, name="class", layer="class", spatial=(3, 2), num_children=2)
    wide = replace(dense, name="wide", num_parents=100, in_size=20, out_size=32)
    layers = (dense, conv, classes, wide)
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
    )
    cases = [
        replace(layer, name=f"{routing}, {layer.name} {options}", routing=routing, options=options)
        for layer in layers
        for routing, options in routings
    ]
    return cases + [
        replace(conv, name=f"{routing}, conv, {kind}", routing=routing, options={"competition": kind})
        for routing in ("dynamic", "em")
        for kind in ("window", "global", "position")
    ]


def check_on(device: str, cases: Iterable[Case], types: Sequence[torch.dtype] = tuple(TOLERANCES)) -> Iterator[Check]:
    """Values and gradients of the Triton backend on a device against the float64 reference on the CPU."""
    for case in cases:
        expected_values, expected_gradients = Workload(case, dtype=torch.float64).values_and_gradients(REFERENCE)
        for dtype in types:
            workload = Workload(case, dtype=dtype, device=device)
            same: dict[str, Any] = {"case": case.name, "backend": GPU, "dtype": str(dtype).removeprefix("torch.")}
            same["tolerance"] = TOLERANCES[dtype]
            refused = workload.why_not(GPU)
            if refused is not None:
                yield Check(**same, refused=refused)
                continue
            values, gradients = workload.values_and_gradients(GPU)
            yield Check(
                **same,
                value_error=largest_error(values, expected_values),
                gradient_error=largest_error(gradients, expected_gradients),
            )


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
        "bandwidth_bytes_per_second": measure_bandwidth(device),
        "verified": [asdict(check) for check in checks],
        "cases": [],
    }
    for case in select(make_cases(quick=False), names or LAYERS):
        tell(f"timing {case.name}")
        results["cases"].append({"case": case.to_dict(), "variants": _time_case(case, device)})
    return results


def measure_bandwidth(device: str) -> float:
    """Bytes a second of a large copy: what no kernel that reads memory can exceed."""
    source = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / (_milliseconds(lambda: target.copy_(source)) / 1000)


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
