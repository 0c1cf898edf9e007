"""Speed and memory, from results/benchmarks/*.json."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from building.markdown import Cells, read, routing_label, table, without_repeats

PASSES = ("forward", "forward_backward")
LAYERS = {"dense": "dense", "conv": "convolutional", "class": "class"}


def routing_speed(results: Path) -> str:
    """The routings on one layer, all on the fused backend in one process; layers with a single routing are left out."""
    rows: list[Cells] = []
    for case in _cases(results):
        if len({case["routing"], *(rival["routing"] for rival in case["rivals"])}) < 2:
            continue
        entries = [("fused", case["routing"], case["options"])]
        entries += [(rival["name"], rival["routing"], rival["options"]) for rival in case["rivals"]]
        for variant, routing, options in entries:
            measured = _measured(case, variant)
            if measured:
                ratio = " / ".join(f"{figures['over_fused']['forward_backward']:.2f}" for figures in measured)
                cells = [_times(measured, name) for name in PASSES]
                rows.append((_layer(case), routing_label(routing, options), *cells, ratio, _peak(measured)))
    headings = ("layer", "routing", "forward, ms", "forward and backward, ms", "against the first", "peak memory, MB")
    return table(headings, without_repeats(rows), numeric_from=2)


def layers(results: Path) -> str:
    """Every layer on every backend: forward and backward, ratio to the reference, share of the roofline, memory."""
    rows: list[Cells] = []
    for case in _cases(results):
        for variant in case["variants"]:
            measured = _measured(case, variant)
            if not measured:
                continue
            speedups = [figures["speedup"].get("forward_backward") for figures in measured]
            ratio = " / ".join("-" if value is None else f"{value:.1f}" for value in speedups)
            name = {"reference": "eager reference", "compile": "compiled reference"}.get(variant, variant)
            routing = routing_label(case["routing"], case["options"])
            shares = " / ".join(f"{100 * figures['roofline_share'][PASSES[1]]:.0f}" for figures in measured)
            cells = (_times(measured, PASSES[1]), ratio, shares, _peak(measured))
            rows.append((f"{_layer(case)}, {routing}", name, *cells))
    headings = ("layer", "backend", "forward and backward, ms", "times faster", "of the roofline, %", "peak memory, MB")
    return table(headings, without_repeats(rows), numeric_from=2)


def latency(results: Path) -> str:
    """Whole models on one image."""
    rows = [
        (
            model["description"],
            *(_milliseconds(model["variants"].get(name)) for name in ("eager", "fused", "onnxruntime")),
        )
        for file in _benchmarks(results)
        for model in file.get("models", [])
        if "variants" in model
    ]
    return table(("model", "eager, ms", "fused, ms", "onnxruntime, ms"), rows, numeric_from=1)


def neighbours(results: Path) -> str:
    """One thread and two, alone and beside a busy process."""
    rows: list[Cells] = []
    path = results / "benchmarks" / "neighbour.json"
    for row in read(path)["neighbour"] if path.exists() else ():
        for name, found in row.get("calls", {}).items():
            cells = [f"{1e3 * found['alone']['one']:.3g}"]
            for where in ("alone", "beside"):
                cells += [f"{1e3 * found[where]['several']:.3g}", f"{found[where]['ratio']:.2f}"]
            cells.insert(3, f"{1e3 * found['beside']['one']:.3g}")
            rows.append((row["name"], name.replace("_", " and "), *cells))
    headings = ("what", "pass", "alone: one", "two", "ratio", "beside: one", "two", "ratio")
    return table(headings, without_repeats(rows), numeric_from=2)


def training(results: Path) -> str:
    """Examples a second in training, with the default allocator and with a heap that is kept: eager, fused, others."""
    files = [results / "throughput" / f"{allocator}.json" for allocator in ("default", "heap-reuse")]
    measured = [read(path)["models"] for path in files if path.exists()]
    rows = [
        (
            name,
            str(first["batch_size"]),
            *(" / ".join(_rate(models[name][what]) for models in measured) for what in ("reference", "fused")),
            " / ".join(f"{models[name]['ratio']:.1f}" for models in measured),
            " / ".join(_rate(models[name]["beside"]) for models in measured) if "beside" in first else "",
        )
        for name, first in (measured[0] if measured else {}).items()
    ]
    headings = ("network", "batch", "eager, a second", "fused, a second", "times as many", "public code, a second")
    return table(headings, rows, numeric_from=1)


def _benchmarks(results: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(results.glob("benchmarks/*.json")):
        content = read(path)
        if "cases" in content and "environment" in content:
            yield content


def _cases(results: Path) -> Iterator[dict[str, Any]]:
    """Each case once: the newest figures of it."""
    newest: dict[str, tuple[str, dict[str, Any]]] = {}
    for file in _benchmarks(results):
        for case in file["cases"]:
            date = file["environment"]["date"]
            if case["name"] not in newest or newest[case["name"]][0] < date:
                newest[case["name"]] = (date, case)
    yield from (case for _, case in newest.values())


def _measured(case: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    """The figures of a variant under each allocator setting that has them."""
    found = [allocator.get("variants", {}).get(variant) for allocator in case["allocators"].values()]
    return [figures for figures in found if figures and "refused" not in figures and PASSES[1] in figures]


def _times(measured: Iterable[dict[str, Any]], name: str) -> str:
    return " / ".join(_milliseconds(figures.get(name)) for figures in measured)


def _milliseconds(timing: dict[str, Any] | None) -> str:
    """Three digits; a disturbed measurement is marked."""
    if timing is None or "seconds" not in timing:
        return "-"
    value, mark = 1e3 * timing["seconds"], "" if timing["is_quiet"] else "~"
    return f"{mark}{value:.0f}" if value >= 100 else f"{mark}{value:.1f}" if value >= 10 else f"{mark}{value:.2f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peak(measured: Sequence[dict[str, Any]]) -> str:
    """Of forward and backward; it is measured with the default allocator."""
    peak = next((figures["peak_bytes"] for figures in measured if figures.get("peak_bytes")), None)
    return "-" if peak is None else f"{peak[PASSES[1]] / 2**20:.0f}"


def _layer(case: dict[str, Any]) -> str:
    return case["description"].rsplit(", ", 1)[0].replace("->", "→") + f", {LAYERS[case['layer']]}"
