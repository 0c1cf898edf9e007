"""The commands that the owner of a GPU is asked for, as there: kernels in the interpreter, a clock that is none."""

import json
from functools import partial

import pytest
import torch

from torchcaps.benchmark import gpu
from torchcaps.cli import main
from torchcaps.gpu import verified

KINDS = gpu.KINDS[1:2]
CASE = next(case for case in gpu.small_cases() if case.name == "dynamic, dense {}")


class Event:
    """Two of them are a millisecond apart."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0


@pytest.fixture(autouse=True)
def pretended_gpu(monkeypatch, tmp_path):
    """Of one small layer; the folder of what is remembered is a new one."""
    pretended = {"is_available": True, "current_device": 0, "get_device_name": "A GPU", "get_device_capability": (9, 0)}
    pretended |= {"reset_peak_memory_stats": None, "max_memory_allocated": 2**20}
    for name, value in pretended.items():
        monkeypatch.setattr(torch.cuda, name, lambda *given, value=value: value)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    check_on = gpu.check_on
    monkeypatch.setattr(gpu, "check_on", lambda device, cases: check_on("cpu", cases, KINDS))
    monkeypatch.setattr(gpu, "run_on_gpu", partial(gpu.run_on_gpu, device="cpu"))
    monkeypatch.setattr(gpu, "small_cases", lambda: [CASE])
    monkeypatch.setattr(gpu, "make_cases", lambda quick: [CASE])
    monkeypatch.setattr(gpu, "VARIANTS", ("reference", "chunked", "triton"))
    monkeypatch.setattr(gpu, "WARM_UP", 0)
    monkeypatch.setattr(gpu, "REPEATS", 1)
    monkeypatch.setenv(verified.VARIABLE, str(tmp_path))
    verified.read_finding.cache_clear()
    yield
    verified.read_finding.cache_clear()


@pytest.fixture
def record(tmp_path):
    return tmp_path / "verified.json"


def test_right_kernels_are_remembered(record, capsys):
    assert main(["doctor", "--verify"]) == 0
    assert "right; 'auto' takes the Triton backend here" in capsys.readouterr().out.replace("\n", " ")
    assert list(json.loads(record.read_text()).values()) == [True]
    assert verified.why_not_index(0) is None


def test_wrong_kernels_are_remembered(record, monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.benchmark.gpu.check_on", partial(spoilt, gpu.check_on))
    assert main(["doctor", "--verify"]) == 1
    assert "WRONG; please report the table" in capsys.readouterr().out.replace("\n", " ")
    assert list(json.loads(record.read_text()).values()) == [False]


def spoilt(check_on, *given):
    for check in check_on(*given):
        yield type(check)(**vars(check) | {"gradient_error": 1.0})


def test_kernels_that_refuse_are_not_remembered_as_right(record, monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.gpu.availability.why_not_triton", lambda: "this Triton is too old")
    assert main(["doctor", "--verify"]) == 2
    assert "could not be verified: this Triton is too old" in capsys.readouterr().err
    assert not record.exists()


def test_benchmark(tmp_path, capsys):
    assert main(["benchmark", "--device", "cuda", "--cases", CASE.name, "--out", str(tmp_path / "gpu.json")]) == 0
    assert "refused" not in capsys.readouterr().out
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["environment"]["gpu"] == "A GPU"
    assert found["roofline"]["flops_per_second"] == pytest.approx(2 * 4096**3 / 1e-3)
    assert [check["refused"] for check in found["verified"]] == [None]
    (case,) = found["cases"]
    assert case["case"]["name"] == CASE.name
    for figures in case["variants"].values():
        assert figures["forward_ms"] == figures["forward_backward_ms"] == 1.0
        assert 0 < figures["forward_roofline"] < figures["forward_backward_roofline"]
        assert figures["peak_bytes"] == 2**20


def test_wrong_kernels_are_not_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.benchmark.gpu.check_on", partial(spoilt, gpu.check_on))
    assert main(["benchmark", "--device", "cuda", "--out", str(tmp_path / "gpu.json")]) == 1
    assert "refusing to time" in capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()
