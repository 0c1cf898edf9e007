"""The benchmark: it counts right, refuses what is wrong, times what is right, and tells where figures come from."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from rich.console import Console

from torchcaps.benchmark import MismatchError, latency, neighbour, report, runner, timing
from torchcaps.benchmark.cases import Case, Rival, Sweep, make_cases, make_sweeps, own_cases, select
from torchcaps.benchmark.latency import ModelCase
from torchcaps.benchmark.memory import peak_bytes
from torchcaps.benchmark.roofline import Roofline
from torchcaps.benchmark.settings import ALLOCATORS, Settings
from torchcaps.benchmark.verify import verify
from torchcaps.benchmark.worker import fit_line, measure_case, measure_sweep
from torchcaps.benchmark.workload import Workload
from torchcaps.capsules import Capsules
from torchcaps.cli import main
from torchcaps.environment import environment
from torchcaps.export import FORMATS
from torchcaps.routing import find_routing, routing_names
from torchcaps.routing.result import RoutingResult
from torchcaps.routing.solvers import Chunked
from torchcaps.storage import write_json

TINY = Settings(quick=True, windows=1, window_seconds=0.0, budget_seconds=0.0)
DENSE = Case(
    name="dense", layer="dense", batch_size=4, num_children=6, num_parents=3, in_size=4, out_size=5,
    variants=("reference", "chunked"),
)  # fmt: skip
CONV = Case(
    name="conv", layer="conv", batch_size=2, spatial=(6, 6), num_children=2, num_parents=3, in_size=4, out_size=4,
    kernel_size=3, stride=2, pose="matrix", routing="em", variants=("reference", "chunked"),
)  # fmt: skip
TEXT = Case(
    name="text", layer="class", batch_size=2, spatial=(5,), num_children=2, num_parents=3, in_size=4, out_size=4,
    variants=("reference", "chunked"),
)  # fmt: skip


class Distorting:
    """A backend that changes what the reference gives."""

    name = "distorting"

    def __init__(self, distort):
        self.distort = distort

    def run(self, problem):
        poses, activations = problem.algorithm.reference(problem).capsules
        return RoutingResult(Capsules(self.distort(poses), activations), torch.empty(0))


def with_wrong_gradient(poses):
    """Right values, gradients a thousandth too large."""
    return poses.detach() + 1.001 * (poses - poses.detach())


@pytest.mark.parametrize("case", [*make_cases(quick=True), DENSE, CONV, TEXT], ids=lambda case: case.name)
def test_cases_count_their_votes_and_survive_json(case):
    case = case.smaller()
    assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case
    workload = Workload(case)
    votes = workload.layer.votes(workload.children)
    assert votes.materialise().numel() == case.num_votes * case.out_size
    sizes = [part.numel() for part in (workload.children.poses, workload.layer.weight, workload.from_above[0])]
    assert case.bytes_moved() == 4 * sum(sizes)


def test_full_cases_are_the_published_layers():
    cases = {case.name: case for case in make_cases(quick=False)}
    digits, conv = cases["digitcaps"], cases["em-conv-14"]
    assert digits.flops() == 128 * 1152 * 10 * (2 * 8 * 16 + (3 + 2) * 2 * 16)
    assert conv.positions == (6, 6)
    assert conv.flops() == 16 * 36 * 288 * 32 * 16 * (2 * 4 + 3 * 6 + 2 * 2)
    assert cases["em-conv-6"].positions == (4, 4)
    assert cases["em-conv-14-b64"].variants == ("chunked", "fused")
    assert (cases["text-conv"].positions, cases["text-class"].spatial) == ((398,), (398,))
    assert all("compile" in case.variants for case in cases.values() if "reference" in case.variants)
    assert not any("compile" in case.variants for case in make_cases(quick=True))


def test_the_roof_is_the_slower_of_arithmetic_and_memory():
    computing = Roofline(flops_per_second=DENSE.flops() / 2, bytes_per_second=1e30)
    moving = Roofline(flops_per_second=1e30, bytes_per_second=DENSE.bytes_moved() / 5)
    assert computing.seconds(DENSE, backward=False) == pytest.approx(2)
    assert moving.seconds(DENSE, backward=True) == pytest.approx(15)


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(ValueError, match="did you mean 'digitcaps'"):
        select(make_cases(quick=True), ["digicaps"])


@pytest.mark.parametrize("case", [DENSE, CONV, TEXT], ids=lambda case: case.name)
def test_right_backends_pass(case):
    checks = verify([case], extra=[Distorting(lambda poses: poses)])
    assert {(check.backend, check.dtype) for check in checks} == {
        (backend, dtype) for backend in ("chunked", "distorting") for dtype in ("float64", "float32")
    }
    assert all(check.passed and check.value_error is not None for check in checks)


@pytest.mark.parametrize("case", [DENSE, CONV], ids=lambda case: case.name)
@pytest.mark.parametrize(
    "distort",
    [lambda poses: poses * 1.001, with_wrong_gradient, lambda poses: poses * float("nan"), lambda poses: poses * 0],
    ids=["values", "gradients", "nan", "zeros"],
)
def test_wrong_backends_are_refused(case, distort):
    with pytest.raises(MismatchError, match=f"refusing to time: distorting on {case.name}") as refusal:
        verify([case], extra=[Distorting(distort)])
    wrong = [check for check in refusal.value.checks if not check.passed]
    assert {check.backend for check in wrong} == {"distorting"}


def test_every_registered_routing_stands_beside_dynamic_routing():
    digits = next(case for case in make_cases(quick=True) if case.name == "digitcaps")
    own = {name for name in routing_names() if find_routing(name).module.__module__.startswith("torchcaps.")}
    assert {rival.routing for rival in digits.rivals} >= own - {"dynamic"}
    assert {rival.name for rival in digits.rivals} >= {"kmeans r 2", "vb r 3", "self"}
    assert {name for case in own_cases("vb", quick=True) for name in case.variants} == {"reference", "chunked", "fused"}


def test_wrong_rivals_are_refused(monkeypatch):
    rival = Rival(name="other", routing="uniform", options={})
    monkeypatch.setattr(Workload, "why_not", lambda self, backend: None)
    run = Workload.values_and_gradients

    def wrong_when_fused(self, variant):
        values, gradients = run(self, "reference")
        return (values if variant == "reference" else [2 * value for value in values]), gradients

    monkeypatch.setattr(Workload, "values_and_gradients", wrong_when_fused)
    with pytest.raises(MismatchError, match="fused on dense: other"):
        verify([replace(DENSE, variants=("reference",), rivals=(rival,))])


def test_the_command_refuses_and_starts_no_timing(monkeypatch, capsys):
    right = Chunked.run

    def wrong(self, problem):
        poses, activations = right(self, problem).capsules
        return RoutingResult(Capsules(poses * 1.01, activations), torch.empty(0))

    monkeypatch.setattr(Chunked, "run", wrong)
    monkeypatch.setattr(runner, "make_cases", lambda quick: (DENSE,))
    monkeypatch.setattr(runner.subprocess, "run", lambda *args, **options: pytest.fail("timed what is wrong"))
    assert main(["benchmark", "--quick", "--cases", "dense"]) == 1
    shown = capsys.readouterr()
    assert "WRONG" in shown.out
    assert "refusing to time: chunked on dense" in shown.err


def test_disturbed_windows_do_not_count(monkeypatch):
    clock = {"now": 0.0, "others": 0.0}
    # windows one, three and five are disturbed: they take twice as long, and others use the CPU meanwhile
    disturbed = [False, False, True, False, True, False, True, False]
    calls = iter(disturbed)

    def call():
        is_disturbed = next(calls)
        clock["now"] += 2.0 if is_disturbed else 1.0
        clock["others"] += 0.5 if is_disturbed else 0.0

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(timing, "_others_seconds", lambda: clock["others"])
    settings = Settings(quick=False, windows=3, window_seconds=0.1, budget_seconds=100.0)
    figure = timing.time_calls({"call": call}, settings)["call"]
    assert (figure.seconds, figure.quiet_windows, figure.windows, figure.is_quiet) == (1.0, 3, 6, True)


def test_a_busy_machine_gives_a_marked_figure(monkeypatch):
    others = iter(range(1000))
    monkeypatch.setattr(timing, "_others_seconds", lambda: next(others))
    figure = timing.time_calls({"call": lambda: sum(range(1000))}, TINY)["call"]
    assert (figure.quiet_windows, figure.windows, figure.is_quiet) == (0, 3, False)


@pytest.mark.skipif(peak_bytes(lambda: None) is None, reason="this system does not tell the peak of memory")
def test_peak_memory_sees_what_is_freed_again():
    size = 64 * 2**20

    def hungry():
        held = torch.ones(size // 4)
        return (held + held).sum().item()  # two blocks at once, none in the end

    for _ in range(2):  # the second finds nothing the first has left behind
        assert peak_bytes(hungry) == pytest.approx(2 * size, rel=0.1)
    assert peak_bytes(lambda: None) < size / 50


def test_lines_are_fitted():
    line = fit_line((1, 2, 4), [3.0, 5.0, 9.0])
    assert line == pytest.approx({"slope": 2.0, "intercept": 1.0, "r_squared": 1.0})
    assert fit_line((1, 2, 3, 4), [1.0, 0.0, 1.0, 0.0])["r_squared"] < 0.5


def test_sweeps_grow_along_each_axis():
    sweep = Sweep(case=replace(DENSE, variants=("chunked",)), sizes={"batch_size": (1, 2, 3), "num_parents": (2, 4)})
    assert Sweep.from_dict(json.loads(json.dumps({"case": sweep.case.to_dict(), "sizes": sweep.sizes}))) == sweep
    assert (sweep.at("batch_size", 3).batch_size, sweep.at("num_parents", 4).num_parents) == (3, 4)
    figures = measure_sweep(sweep, TINY)
    assert [len(axis["seconds"]) for axis in figures["axes"].values()] == [3, 2]
    for full in make_sweeps(quick=False):
        assert set(full.sizes) == {"batch_size", "num_children", "num_parents"}


@pytest.mark.parametrize(
    ("names", "cases", "has_sweeps"),
    [(("growth",), [], True), (("digitcaps", "growth"), ["digitcaps"], True), (("digitcaps",), ["digitcaps"], False)],
)
def test_growth_is_named_like_a_case(monkeypatch, names, cases, has_sweeps):
    asked = []
    monkeypatch.setattr(runner, "run_cases", lambda cases, sweeps, *rest, **more: asked.append((cases, sweeps)))
    runner.run(TINY, names=names)
    assert [([case.name for case in found], bool(sweeps)) for found, sweeps in asked] == [(cases, has_sweeps)]


def test_allocator_settings_reach_the_process(monkeypatch):
    tell = "import json, os, sys; json.load(sys.stdin); print('noise'); print(json.dumps(dict(os.environ)))"
    monkeypatch.setattr(runner, "WORKER", (sys.executable, "-c", tell))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    default = runner._run_job({}, TINY, "default")
    assert not any(name.startswith("MALLOC_") for name in default)
    reuse = runner._run_job({}, TINY.with_threads(3), "heap reuse")
    assert reuse["OMP_NUM_THREADS"] == "3"
    assert ALLOCATORS["heap reuse"].items() <= reuse.items()


def test_a_process_that_dies_does_not_end_the_others(monkeypatch):
    monkeypatch.setattr(runner, "WORKER", (sys.executable, "-c", "raise SystemExit('no memory left')"))
    results = runner.run_cases([DENSE, CONV], [], TINY, lambda message: None)
    assert report.failures(results) == ["its process ended with code 1: no memory left"] * 4


def test_compiled_code_that_takes_its_process_with_it_is_left_out(monkeypatch):
    jobs = []

    def run_job(job, settings, allocator):
        jobs.append(tuple(job["case"]["variants"]))
        if "compile" in jobs[-1]:
            return {"failed": "its process ended with code -6: free(): invalid size"}
        return {"variants": {name: {} for name in jobs[-1]}}

    monkeypatch.setattr(runner, "_run_job", run_job)
    case = replace(DENSE, variants=("reference", "compile"))
    [written] = runner.run_cases([case], [], TINY, lambda message: None)["cases"]
    assert jobs == [("reference", "compile"), ("reference",)] * 2
    assert written["allocators"]["default"]["variants"] == {
        "reference": {},
        "compile": {"refused": "its process ended with code -6: free(): invalid size"},
    }


def test_results_from_real_processes(tmp_path):
    messages = []
    case = replace(DENSE, variants=("reference", "chunked", "fused"))
    runner.run_cases([case], [], TINY.with_threads(1), messages.append, partial(write_json, tmp_path / "results.json"))
    assert messages == ["timing dense (default allocator)", "timing dense (heap reuse allocator)"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results) == {"schema", "environment", "settings", "verified", "cases", "models", "growth"}
    assert {"date", "command", "machine", "cpu", "threads", "versions", "kernels"} <= set(results["environment"])
    assert (results["environment"]["threads"], results["settings"]["threads"]) == (1, 1)
    assert set(results["environment"]["versions"]) == {"torchcaps", "torch", "numpy", "python"}
    assert report.failures(results) == []
    [written] = results["cases"]
    assert Case.from_dict({name: written[name] for name in case.to_dict()}) == case
    assert set(written["allocators"]) == {"default", "heap reuse"}
    for allocator, figures in written["allocators"].items():
        assert figures["threads"] == 1
        assert set(figures["roofline"]) == {"flops_per_second", "bytes_per_second"}
        reference, chunked = figures["variants"]["reference"], figures["variants"]["chunked"]
        for name in ("forward", "forward_backward", "batch_1"):
            assert reference["speedup"][name] == 1
            ratio = reference[name]["seconds"] / chunked[name]["seconds"]
            assert chunked["speedup"][name] == pytest.approx(ratio)
        assert (reference["peak_bytes"] is None) == (allocator == "heap reuse")
        share = reference["roofline_share"]["forward_backward"]
        flops = 3 * case.flops() / figures["roofline"]["flops_per_second"]
        moved = 3 * case.bytes_moved() / figures["roofline"]["bytes_per_second"]
        assert share == pytest.approx(max(flops, moved) / reference["forward_backward"]["seconds"])
    shown = show(results)
    assert "dense: B4, 6 -> 3, 4 -> 5 vector, dynamic" in shown
    assert shown.count("  eager ") == 2


def test_tables_show_refusals_rivals_and_failures(monkeypatch):
    rival = Rival(name="other", routing="uniform", options={})
    case = replace(DENSE, variants=("reference", "fused"), rivals=(rival,))
    answers = iter([None, "it is Sunday"])  # fused takes the case and refuses the rival
    monkeypatch.setattr(Workload, "why_not", lambda self, backend: next(answers, None) if backend == "fused" else None)
    parents = Workload._parents
    monkeypatch.setattr(Workload, "_parents", lambda self, variant: parents(self, "reference"))
    figures = measure_case(case, TINY, memory=True)
    assert figures["variants"]["other"] == {"refused": "it is Sunday"}
    written = case.to_dict() | {"description": case.description}
    written["allocators"] = {"default": figures, "heap reuse": {"failed": "its process ended"}}
    sweeps = [measure_sweep(Sweep(case=DENSE, sizes={"batch_size": (1, 2, 4)}), TINY)]
    results = {
        "environment": environment(),
        "verified": [check.__dict__ for check in verify([DENSE])],
        "cases": [written],
        "models": [],
        "growth": {"sweeps": sweeps},
    }
    shown = show(results)
    assert "other refused: it is Sunday" in shown
    assert "its process ended" in shown
    assert "R²" in shown
    results["growth"] = {"failed": "out of memory"}
    assert "growth was not measured: out of memory" in show(results)


def test_whole_models_from_a_real_process():
    model = ModelCase(name="tiny", model="cnn-small", image_shape=(1, 19, 19), num_classes=2)
    results = json.loads(
        json.dumps(runner.run_cases([], [], TINY.with_threads(1), lambda message: None, models=[model]))
    )
    assert report.failures(results) == []
    [written] = results["models"]
    variants = written["variants"]
    assert written["threads"] == 1
    assert {"eager", "onnxruntime"} <= {name for name, variant in variants.items() if "refused" not in variant}
    assert variants["eager"]["speedup"] == 1
    expected = variants["eager"]["seconds"] / variants["onnxruntime"]["seconds"]
    assert variants["onnxruntime"]["speedup"] == pytest.approx(expected)
    shown = show(results)
    assert "Whole models, one image" in shown
    assert "tiny: cnn-small, one image of 1x19x19, 2 classes" in shown


def test_models_that_are_wrong_or_missing_are_not_timed(monkeypatch):
    model = ModelCase(name="tiny", model="cnn-small", image_shape=(1, 19, 19), num_classes=2)
    monkeypatch.setattr(latency, "export_model", lambda model, path: None)
    monkeypatch.setattr(latency, "load_onnx", lambda path, num_threads: lambda image: [None, torch.zeros(1, 2).numpy()])
    with pytest.raises(RuntimeError, match="refusing to time: onnxruntime on tiny differs from eager"):
        latency.measure_model(model, TINY)
    absent = replace(FORMATS["onnx"], why_not=lambda: "it is not installed")
    monkeypatch.setitem(latency.FORMATS, "onnx", absent)
    figures = latency.measure_model(model, TINY)
    assert figures["variants"]["onnxruntime"] == {"refused": "it is not installed"}
    results = {"environment": environment(), "verified": [], "cases": [], "growth": {"sweeps": []}}
    failed = {"name": "other", "description": "another", "failed": "its process ended"}
    results["models"] = [{"name": "tiny", "description": "small", **figures}, failed]
    shown = show(results)
    assert "onnxruntime refused: it is not installed" in shown
    assert "its process ended" in shown
    assert report.failures(results) == ["its process ended"]


def test_a_routing_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_routing.py").write_text(
        "from torchcaps.nn import Routing\n"
        "from torchcaps.routing import dynamic_routing\n"
        "class Twice(Routing):\n"
        "    def forward(self, votes, *, return_trace=False):\n"
        "        return dynamic_routing(votes, num_iterations=2, return_trace=return_trace)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    cases = own_cases("my_routing:Twice", quick=True)
    assert [case.layer for case in cases] == ["dense", "dense"]
    assert {check.backend for check in verify(cases[:1])} == {"chunked"}
    figures = measure_case(cases[0].smaller(), TINY, memory=False)
    assert set(figures["variants"]) == {"reference", "chunked"}
    monkeypatch.setattr(runner.subprocess, "run", lambda *args, **options: pytest.fail("timed what does not exist"))
    assert main(["benchmark", "--quick", "--routing", "my_routing:Thrice"]) == 2


def test_an_unknown_case_is_one_sentence(capsys):
    assert main(["benchmark", "--quick", "--cases", "digicaps"]) == 2
    assert "did you mean 'digitcaps'?" in capsys.readouterr().err


def show(results) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        report.print_results(results, console)
    return captured.get()


def test_a_neighbour_is_started_and_ended(monkeypatch):
    """Its figures are those of one thread and of several, and nobody is left who computes."""
    started = []
    real = neighbour.subprocess.Popen
    monkeypatch.setattr(neighbour.subprocess, "Popen", lambda *given: started.append(real(*given)) or started[-1])
    monkeypatch.setattr(neighbour, "QUICK_WINDOW_SECONDS", 0.0)
    before = torch.get_num_threads()
    found = neighbour.measure_neighbour(replace(DENSE, variants=()), TINY)
    assert list(found) == ["forward", "forward_backward"]
    for figures in found.values():
        for where in ("alone", "beside"):
            times = figures[where]
            assert times["ratio"] == pytest.approx(times["several"] / times["one"])
    assert [process.returncode for process in started] == [-9, -9]
    assert torch.get_num_threads() == before
    with pytest.raises(KeyboardInterrupt), neighbour.neighbour():
        raise KeyboardInterrupt
    assert started[-1].returncode == -9


def test_a_neighbour_does_not_outlive_who_started_it():
    stranger = subprocess.run([sys.executable, "-c", neighbour.NEIGHBOUR, "1"], timeout=20)  # not the parent
    assert stranger.returncode == 0


def test_the_table_of_neighbours_marks_what_is_too_slow():
    def times(ratio):
        return {"one": 0.01, "several": 0.01 * ratio, "ratio": ratio}

    calls = {"forward": {"threads": 2, "alone": times(0.5), "beside": times(1.26)}}
    rows = [{"name": "digitcaps", "calls": calls}, {"name": "large", "failed": "no memory"}]
    console = Console(record=True, width=120, color_system="truecolor", force_terminal=True)
    console.print(report.neighbour_table({"bar": 1.25, "neighbour": rows}))
    told = console.export_text(styles=True)
    assert "\x1b[1;31m1.26" in told
    assert "12.6" in told
    assert "no memory" in told
    assert report.failures({"neighbour": rows}) == ["no memory"]


@pytest.mark.slow
def test_neighbours_from_the_command_line(tmp_path, capsys):
    out = tmp_path / "neighbour.json"
    assert main(["benchmark", "--neighbour", "--quick", "--cases", "digitcaps", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["neighbour"]
    assert set(row["calls"]) == {"forward", "forward_backward"}
    assert "alone and beside a busy process" in capsys.readouterr().out
