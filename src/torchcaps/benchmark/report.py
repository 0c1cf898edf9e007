"""Tables for people, JSON for everything else."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from torchcaps.benchmark.verify import Check
from torchcaps.routing.backend import REFERENCE

PASSES = {"forward": "fwd", "forward_backward": "fwd+bwd"}
AXES = {"batch_size": "batch", "num_children": "children", "num_parents": "parents"}


def print_results(results: dict[str, Any], console: Console) -> None:
    """Where, what was verified, one table for each allocator setting, and the growth."""
    console.print(environment_line(results["environment"]))
    if checks := [Check(**check) for check in results["verified"]]:
        console.print(verification_line(checks))
    allocators = list(results["cases"][0]["allocators"]) if results["cases"] else []
    for allocator in allocators:
        console.print(case_table(results["cases"], allocator))
    if results["models"]:
        console.print(model_table(results["models"]))
    for note in notes(results):
        console.print(note, style="dim", highlight=False)
    growth = results["growth"]
    if "failed" in growth:
        console.print(f"growth was not measured: {growth['failed']}")
    elif growth["sweeps"]:
        console.print(growth_table(growth["sweeps"]))


def environment_line(environment: dict[str, Any]) -> str:
    """Machine and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return (
        f"{environment['cpu']}, {environment['num_cpus']} CPUs, {environment['threads']} threads, "
        f"{environment['kernels']}; {versions}; {environment['date']}"
    )


def verification_line(checks: Sequence[Check]) -> str:
    """How much was checked, and how close it was."""
    done = [check for check in checks if check.refused is None]
    worst = {
        dtype: max(max(check.value_error or 0, check.gradient_error or 0) for check in done if check.dtype == dtype)
        for dtype in dict.fromkeys(check.dtype for check in done)
    }
    errors = ", ".join(f"{error:.1e} in {dtype}" for dtype, error in worst.items())
    return f"{len(done)} checks against the float64 reference passed; largest relative errors: {errors}"


def verification_table(checks: Sequence[Check]) -> Table:
    """Every check with its errors."""
    table = Table(title="Backends against the float64 reference (relative errors)")
    for column in ("case", "backend", "dtype", "values", "gradients", "tolerance", ""):
        table.add_column(column, justify="left" if column in ("case", "backend", "dtype") else "right")
    for check in checks:
        if check.refused is not None:
            table.add_row(check.case, check.backend, check.dtype, "", "", "", f"refused: {check.refused}")
            continue
        verdict = "ok" if check.passed else "[bold red]WRONG[/]"
        numbers = (f"{number:.1e}" for number in (check.value_error, check.gradient_error, check.tolerance))
        table.add_row(check.case, check.backend, check.dtype, *numbers, verdict)
    return table


def case_table(cases: Sequence[dict[str, Any]], allocator: str) -> Table:
    """All cases under one allocator setting: milliseconds, and how many times faster than the eager reference."""
    caption = "ms, times faster than eager; ~ disturbed"
    table = Table(title=f"Routing layers, {allocator} allocator", caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    with_peaks = allocator == "default"
    for heading in ("forward", "fwd+bwd", "batch 1", "roofline", *(["peak MB"] if with_peaks else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in cases:
        table.add_row(f"[bold]{case['name']}[/]")
        figures = case["allocators"][allocator]
        if "failed" in figures:
            table.add_row(f"  {figures['failed']}", end_section=True)
            continue
        variants = figures["variants"]
        for index, (label, variant) in enumerate(variants.items()):
            cells = ["refused"] if "refused" in variant else _cells(variant, with_peaks=with_peaks)
            name = "eager" if label == REFERENCE else label
            table.add_row(f"  {name}", *cells, end_section=index + 1 == len(variants))
    return table


def model_table(models: Sequence[dict[str, Any]]) -> Table:
    """Whole models on one image; "x" is how many times faster than the eager reference."""
    table = Table(title="Whole models, one image", caption="~ too few quiet moments: disturbed figure")
    for column in ("model", "variant", "ms", "x"):
        table.add_column(column, justify="right" if column in ("ms", "x") else "left")
    for model in models:
        if "failed" in model:
            table.add_row(model["name"], model["failed"], end_section=True)
            continue
        for index, (label, variant) in enumerate(model["variants"].items()):
            cells = ["refused"]
            if "refused" not in variant:
                mark = "" if variant["is_quiet"] else "~"
                cells = [f"{mark}{_number(1e3 * variant['seconds'])}", _number(variant["speedup"])]
            is_last = index + 1 == len(model["variants"])
            table.add_row(model["name"] if index == 0 else "", label, *cells, end_section=is_last)
    return table


def neighbour_table(results: dict[str, Any]) -> Table:
    """One thread and several, alone and beside a busy process."""
    calls = [found for row in results["neighbour"] for found in row.get("calls", {}).values()]
    several = str(calls[0]["threads"]) if calls else "several"
    caption = f"ms; beside a busy process {several} threads may take {results['bar']:g} times as long as one"
    title = f"One thread and {several}, alone and beside a busy process"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for column in ("alone: 1", several, "ratio", "beside: 1", several, "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in results["neighbour"]:
        for name, found in row.get("calls", {}).items():
            cells = []
            for where in ("alone", "beside"):
                times = (_number(1e3 * found[where][key]) for key in ("one", "several"))
                missed = where == "beside" and found[where]["ratio"] > results["bar"]
                ratio = f"{found[where]['ratio']:.2f}"
                cells += [*times, f"[bold red]{ratio}[/]" if missed else ratio]
            label = f"{row['name']} {PASSES.get(name, '')}".rstrip()
            table.add_row(label, *cells)
        if "failed" in row:
            table.add_row(row["name"], row["failed"])
    return table


def notes(results: dict[str, Any]) -> list[str]:
    """Shapes of the cases, and why a variant is missing."""
    lines = []
    for case in results["cases"]:
        lines.append(f"{case['name']}: {case['description']}")
        figures = next(iter(case["allocators"].values()))
        for label, variant in figures.get("variants", {}).items():
            if "refused" in variant:
                lines.append(f"  {label} refused: {variant['refused']}")
            elif label not in case["variants"] and (over := variant["over_fused"].get("forward_backward")):
                lines.append(f"  {label} on the fused backend takes {over:.2f} of the time of {case['routing']}")
    for model in results["models"]:
        lines.append(f"{model['name']}: {model['description']}")
        refused = {label: v["refused"] for label, v in model.get("variants", {}).items() if "refused" in v}
        lines += [f"  {label} refused: {reason}" for label, reason in refused.items()]
    return lines


def failures(results: dict[str, Any]) -> list[str]:
    """What ended without figures."""
    parts = [figures for case in results.get("cases", ()) for figures in case["allocators"].values()]
    parts += [*results.get("models", ()), results.get("growth", {}), *results.get("neighbour", ())]
    return [part["failed"] for part in parts if "failed" in part]


def growth_table(sweeps: Sequence[dict[str, Any]]) -> Table:
    """Growth along each axis with the straight line through it."""
    table = Table(title="Growth of forward + backward (ms at each size)")
    for column in ("layer", "backend", "axis", "sizes", "ms", "ms per unit", "R²"):
        table.add_column(column)
    for sweep in sweeps:
        for axis, line in sweep["axes"].items():
            sizes = " ".join(map(str, line["sizes"]))
            times = " ".join(_number(1e3 * seconds) for seconds in line["seconds"])
            slope, r_squared = f"{1e3 * line['slope']:.3g}", f"{line['r_squared']:.4f}"
            table.add_row(sweep["name"], sweep["backend"], AXES[axis], sizes, times, slope, r_squared)
    return table


def _cells(variant: dict[str, Any], *, with_peaks: bool) -> list[str]:
    """Timings with their ratios; share of the roofline and peak memory are those of forward + backward."""
    cells = []
    for name in ("forward", "forward_backward", "batch_1"):
        timing, speedup = variant.get(name), variant["speedup"].get(name)
        mark = "" if timing is None or timing["is_quiet"] else "~"
        time = "" if timing is None else f"{mark}{_number(1e3 * timing['seconds'])}"
        cells.append(time if speedup is None else f"{time} {_number(speedup) + 'x':>5}")
    cells.append(f"{_number(100 * variant['roofline_share']['forward_backward'])} %")
    if with_peaks:
        peak = (variant["peak_bytes"] or {}).get("forward_backward")
        cells.append("" if peak is None else _number(peak / 2**20))
    return cells


def _number(value: float) -> str:
    """Three digits, never an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def gpu_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Of a run on a GPU, or of what was compiled for one."""
    for found in results.get("static", ()):
        title = (
            f"{found['case']} for {found['target']}: {found['launches']} launches, "
            f"at least {found['flops'] / 1e9:.1f} GFLOP and {found['bytes'] / 1e6:.0f} MB; not timed"
        )
        numbered = ("launches", "programs", "registers", "spilled", "shared")
        table = Table("kernel", *numbered, "occupancy", title=title, box=box.SIMPLE_HEAD, collapse_padding=True)
        for kernel in found["kernels"]:
            numbers = (kernel[name] for name in numbered)
            table.add_row(kernel["kernel"], *map(str, numbers), f"{kernel['occupancy']:.0%}")
        yield table
    for case in results.get("cases", ()):
        columns = ("backend", "forward ms", "of roofline", "with backward ms", "of roofline", "peak MiB")
        table = Table(*columns, title=case["case"]["name"])
        for name, figures in case["variants"].items():
            if "refused" in figures:
                table.add_row(name, f"refused: {figures['refused']}")
                continue
            cells = []
            for key in ("forward", "forward_backward"):
                cells += [f"{figures[f'{key}_ms']:.3f}", f"{figures[f'{key}_roofline']:.0%}"]
            table.add_row(name, *cells, f"{figures['peak_bytes'] / 2**20:.0f}")
        yield table
