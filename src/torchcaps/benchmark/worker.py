"""One process: one case, model or sweep under one allocator setting. Reads a job as JSON, writes figures as JSON."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from torchcaps.benchmark.cases import COMPILE, FASTEST, Case, Sweep
from torchcaps.benchmark.latency import ModelCase, measure_model
from torchcaps.benchmark.memory import peak_bytes
from torchcaps.benchmark.neighbour import measure_neighbour
from torchcaps.benchmark.roofline import measure_roofline
from torchcaps.benchmark.settings import Settings
from torchcaps.benchmark.timing import Timing, time_calls
from torchcaps.benchmark.workload import Workload
from torchcaps.native import library
from torchcaps.routing.backend import REFERENCE

Runnable = dict[str, tuple[Workload, str]]  # label -> what runs, and as which variant


def measure_case(case: Case, settings: Settings, *, memory: bool) -> dict[str, Any]:
    """All figures of one case.

    Args:
        memory: take peak memory too; right only under the default allocator.
    """
    runnable, refused = _prepare(case)
    # memory before timing, and the thriftiest first, so that no call finds memory another has left behind
    peaks = {label: _peaks(*runnable[label]) for label in reversed(runnable)} if memory else {}
    roofline = measure_roofline(settings)
    timings = {
        "forward": _time(runnable, "forward", settings),
        "forward_backward": _time(runnable, "forward_backward", settings),
    }
    if REFERENCE in case.variants:
        single, _ = _prepare(replace(case, batch_size=1, rivals=()))
        timings["batch_1"] = _time(single, "forward", settings)
    variants: dict[str, Any] = {label: {"refused": reason} for label, reason in refused.items()}
    for label, (workload, _) in runnable.items():
        variants[label] = _figures(label, timings, peaks.get(label))
        variants[label]["roofline_share"] = {
            name: roofline.seconds(workload.case, backward=name == "forward_backward") / timings[name][label].seconds
            for name in ("forward", "forward_backward")
        }
    return {"roofline": asdict(roofline), "threads": torch.get_num_threads(), "variants": variants}


def measure_sweep(sweep: Sweep, settings: Settings) -> dict[str, Any]:
    """Forward and backward at each size along each axis, with the straight line through them."""
    backend = Workload(sweep.case).plan().chosen
    axes = {}
    for axis, sizes in sweep.sizes.items():
        workloads = {str(size): (Workload(sweep.at(axis, size)), backend) for size in sizes}
        timings = _time(workloads, "forward_backward", settings)
        seconds = [timings[str(size)].seconds for size in sizes]
        axes[axis] = {"sizes": list(sizes), "seconds": seconds, **fit_line(sizes, seconds)}
    return {"name": sweep.case.name, "backend": backend, "axes": axes}


def fit_line(sizes: tuple[int, ...], seconds: list[float]) -> dict[str, float]:
    """Least squares: seconds = intercept + slope * size, and the share of the variance it explains, R^2."""
    slope, intercept = np.polyfit(sizes, seconds, 1)
    residual = np.asarray(seconds) - (intercept + slope * np.asarray(sizes))
    r_squared = 1 - residual @ residual / (len(seconds) * np.var(seconds))
    return {"slope": float(slope), "intercept": float(intercept), "r_squared": float(r_squared)}


def _prepare(case: Case) -> tuple[Runnable, dict[str, str]]:
    """What runs, from the hungriest to the thriftiest, and what refuses with its reason."""
    workload = Workload(case)
    candidates: Runnable = {variant: (workload, variant) for variant in case.variants}
    for rival in case.rivals:
        candidates[rival.name] = (Workload(case.with_routing(rival.routing, **rival.options)), FASTEST)
    runnable, refused = {}, {}
    for label, (candidate, variant) in candidates.items():
        reason = _why_not(candidate, variant)
        if reason is None:
            runnable[label] = (candidate, variant)
        else:
            refused[label] = reason
    return runnable, refused


def _why_not(workload: Workload, variant: str) -> str | None:
    if variant != COMPILE:
        return workload.why_not(variant)
    try:
        workload.compile()
        workload.forward(COMPILE)
        workload.forward_backward(COMPILE)
    except Exception as error:  # compilers fail in many ways; the other variants are still worth timing
        return f"torch.compile failed: {str(error).splitlines()[0]}"
    return None


def _peaks(workload: Workload, variant: str) -> dict[str, int | None]:
    if variant != COMPILE:  # which has run already
        small = Workload(workload.case.smaller())
        small.forward_backward(variant)  # loads libraries and starts threads
    peaks = {}
    for name, call in (("forward", workload.forward), ("forward_backward", workload.forward_backward)):
        if library.why_not() is None:
            library.release_scratch()  # scratch counts for the call that needs it, not for the first that did
        peaks[name] = peak_bytes(partial(call, variant))
    return peaks


def _time(runnable: Runnable, method: str, settings: Settings) -> dict[str, Timing]:
    calls: dict[str, Callable[[], object]] = {
        label: partial(getattr(workload, method), variant) for label, (workload, variant) in runnable.items()
    }
    return time_calls(calls, settings)


def _figures(label: str, timings: dict[str, dict[str, Timing]], peaks: dict[str, int | None] | None) -> dict[str, Any]:
    """Times of one variant, and how many times faster it is than the reference and slower than the fastest backend."""
    figures: dict[str, Any] = {"peak_bytes": peaks, "speedup": {}, "over_fused": {}}
    for name, of_variant in timings.items():
        if label not in of_variant:
            continue
        seconds = of_variant[label].seconds
        figures[name] = asdict(of_variant[label]) | {"is_quiet": of_variant[label].is_quiet}
        if REFERENCE in of_variant:
            figures["speedup"][name] = of_variant[REFERENCE].seconds / seconds
        if FASTEST in of_variant:
            figures["over_fused"][name] = seconds / of_variant[FASTEST].seconds
    return figures


def main() -> None:
    """Do the job given on standard input."""
    job = json.load(sys.stdin)
    settings = Settings(**job["settings"])
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    if "sweeps" in job:
        figures = {"sweeps": [measure_sweep(Sweep.from_dict(sweep), settings) for sweep in job["sweeps"]]}
    elif "neighbour" in job:
        figures = measure_neighbour(job["neighbour"] and Case.from_dict(job["neighbour"]), settings)
    elif "model" in job:
        figures = measure_model(ModelCase(**job["model"]), settings)
    else:
        figures = measure_case(Case.from_dict(job["case"]), settings, memory=job["memory"])
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
