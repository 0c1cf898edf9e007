"""The doctor tells what is here, why the rest is not, and what to do."""

import os
from importlib.metadata import version

import pytest
import torch

from test_packaging import EXTRAS as DECLARED
from test_packaging import package_name
from torchcaps import __version__, doctor
from torchcaps.cli import main
from torchcaps.native import library
from torchcaps.routing import routing_names


def findings() -> dict[str, doctor.Finding]:
    return {finding.part: finding for finding in doctor.examine()}


def test_extras_are_those_of_the_project():
    declared = {extra: tuple(map(package_name, DECLARED[extra])) for extra in set(DECLARED) - {"dev", "docs", "all"}}
    assert {extra: packages for extra, (packages, _) in doctor.EXTRAS.items()} == declared


def test_it_finds_what_is_installed(monkeypatch, capsys):
    found = findings()
    assert found["torchcaps"].state == __version__
    assert found["tensorboard"] == doctor.Finding("tensorboard", f"tensorboard {version('tensorboard')}")
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "onnxruntime" else "1.0")
    missing = findings()["onnx"]
    assert missing.state == "not installed: onnxruntime"
    assert "pip install 'torchcaps[onnx]'" in missing.advice
    assert main(["doctor"]) == 0
    assert "'torchcaps[onnx]'" in capsys.readouterr().out


def test_it_says_why_a_backend_does_not_run(monkeypatch):
    if library.why_not() is None:
        found = findings()
        assert "auto takes fused" in found["backends"].state
        names = found["fused kernels"].state.split(", for ")[1].split(", ")
        assert set(names) == set(routing_names())
    monkeypatch.setattr(library, "why_not", lambda: "it was not built")
    found = findings()
    assert found["fused kernels"].state == "missing: it was not built"
    assert "many times longer" in found["fused kernels"].advice
    assert "auto takes chunked on the CPU; fused does not: " in found["backends"].state


@pytest.mark.parametrize(("threads", "advice"), [(1, "2 cores are free"), (2, ""), (3, "more threads than cores")])
def test_threads(monkeypatch, threads, advice):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    found = findings()["threads"]
    assert found.state == f"{threads} on 2 cores"
    assert found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


def test_memory_settings(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "HUGE_PAGES", tmp_path / "enabled")
    for name in ("MALLOC_MMAP_MAX_", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    assert findings()["huge pages"].state == "unknown"
    (tmp_path / "enabled").write_text("always [madvise] never")
    found = findings()
    assert found["allocator"].advice.startswith(doctor.HEAP_REUSE)
    assert "THP_MEM_ALLOC_ENABLE=1" in found["huge pages"].advice
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    found = findings()
    assert not found["allocator"].advice
    assert not found["huge pages"].advice


def test_compiler_and_data(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "nowhere"))
    found = findings()
    assert "install g++" in found["C++ compiler"].advice
    assert found["data folder"].state.endswith("is not a folder")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert findings()["data folder"] == doctor.Finding("data folder", str(tmp_path))
