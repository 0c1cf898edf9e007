"""The whole benchmark: verify, then one process for each case and allocator setting."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from torchcaps.benchmark.cases import QUICK_LOOK, QUICK_MODEL, Case, Sweep, make_cases, make_sweeps, own_cases, select
from torchcaps.benchmark.latency import MODEL_CASES, ModelCase
from torchcaps.benchmark.neighbour import BAR, STEP, STEP_DESCRIPTION
from torchcaps.benchmark.settings import ALLOCATORS, Settings
from torchcaps.benchmark.verify import verify
from torchcaps.checks import check_choice
from torchcaps.environment import environment

SCHEMA = 1  # raise it when a key of the results changes its meaning

GROWTH = "growth"  # the name of the sweeps

WORKER = (sys.executable, "-m", "torchcaps.benchmark.worker")


def run(
    settings: Settings,
    *,
    names: Sequence[str] = (),
    routing: str | None = None,
    tell: Callable[[str], object] = lambda message: None,
    save: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """Verify every backend, then time what passed.

    Args:
        settings: how carefully.
        names: only these cases, and the sweeps where "growth" is among them; if empty all of them (a quick run takes
            four cases) and the sweeps.
        routing: import path of a routing of the user's own, timed in dense layers instead of our cases.
        tell: receives what is going on.
        save: receives what there is after each part; all parts together take most of an hour.

    Returns:
        All figures as plain values; `report` makes tables of them.

    Raises:
        MismatchError: if a backend disagrees with the reference; nothing is timed then.
    """
    if routing:
        return run_cases(select(own_cases(routing, quick=settings.quick), names), (), settings, tell, save)
    sweeps = () if names and GROWTH not in names else make_sweeps(quick=settings.quick)
    known = {case.name: case for case in make_cases(quick=settings.quick)}
    models = {case.name: case for case in MODEL_CASES}
    for name in names:
        check_choice("case", name, [*known, *models, GROWTH])
    wanted = names or ((*QUICK_LOOK, QUICK_MODEL) if settings.quick else (*known, *models))
    cases = [known[name] for name in wanted if name in known]
    return run_cases(cases, sweeps, settings, tell, save, models=[models[name] for name in wanted if name in models])


def run_cases(
    cases: Sequence[Case],
    sweeps: Sequence[Sweep],
    settings: Settings,
    tell: Callable[[str], object],
    save: Callable[[dict[str, Any]], object] = lambda results: None,
    *,
    models: Sequence[ModelCase] = (),
) -> dict[str, Any]:
    """Verify and time the given cases, sweeps and models."""
    checks = verify([*cases, *(sweep.case for sweep in sweeps)])
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(settings.threads),
        "settings": asdict(settings),
        "verified": [asdict(check) for check in checks],
        "cases": [],
        "models": [],
        "growth": {"sweeps": []},
    }
    for case in cases:
        figures = {}
        for allocator in ALLOCATORS:
            tell(f"timing {case.name} ({allocator} allocator)")
            figures[allocator] = _measure(case, settings, allocator)
        results["cases"].append({**case.to_dict(), "description": case.description, "allocators": figures})
        save(results)
    for model in models:
        tell(f"timing {model.name}")
        figures = _run_job({"model": asdict(model)}, settings, "default")
        results["models"].append({**asdict(model), "description": model.description, **figures})
        save(results)
    if sweeps:
        tell("timing how time grows with batch, children and parents")
        job = {"sweeps": [{"case": sweep.case.to_dict(), "sizes": sweep.sizes} for sweep in sweeps]}
        results["growth"] = _run_job(job, settings, "default")
        save(results)
    return results


def run_neighbour(
    settings: Settings,
    *,
    names: Sequence[str] = (),
    tell: Callable[[str], object] = lambda message: None,
    save: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """One thread and several, alone and beside a busy process; arguments and errors as those of `run`."""
    known = {case.name: case for case in make_cases(quick=settings.quick)}
    for name in names:
        check_choice("case", name, [*known, STEP])
    wanted = names or ((*QUICK_LOOK, STEP) if settings.quick else (*known, STEP))
    checks = verify([known[name] for name in wanted if name in known])
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(settings.threads),
        "settings": asdict(settings),
        "verified": [asdict(check) for check in checks],
        "bar": BAR,
        "neighbour": [],
    }
    for name in wanted:
        tell(f"timing {name}, alone and beside a busy process")
        case = known.get(name)
        figures = _run_job({"neighbour": case and case.to_dict()}, settings, "default")
        described = {"name": name, "description": case.description if case else STEP_DESCRIPTION}
        results["neighbour"].append(described | (figures if "failed" in figures else {"calls": figures}))
        save(results)
    return results


def _measure(case: Case, settings: Settings, allocator: str) -> dict[str, Any]:
    """The figures of a case; compiled code that takes its process with it is left out, and the rest timed again."""
    memory = allocator == "default"
    figures = _run_job({"case": case.to_dict(), "memory": memory}, settings, allocator)
    if "failed" in figures and "compile" in case.variants:
        others = replace(case, variants=tuple(name for name in case.variants if name != "compile"))
        again = _run_job({"case": others.to_dict(), "memory": memory}, settings, allocator)
        if "failed" not in again:
            again["variants"]["compile"] = {"refused": figures["failed"]}
            return again
    return figures


def _run_job(job: dict[str, Any], settings: Settings, allocator: str) -> dict[str, Any]:
    """The figures of one process, or {"failed": why}: a case that exhausts the memory does not end the others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment |= ALLOCATORS[allocator]
    if settings.threads is not None:
        environment["OMP_NUM_THREADS"] = str(settings.threads)
    process = subprocess.run(
        WORKER,
        input=json.dumps(job | {"settings": asdict(settings)}),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        return {"failed": f"its process ended with code {process.returncode}: {reason}"}
    return json.loads(process.stdout.splitlines()[-1])
