"""Whom the Triton backend refuses and why, and where "auto" takes it; no kernel runs here."""

import json

import pytest
import torch
from rich.console import Console

from support.cases import dense_case
from torchcaps.benchmark.report import gpu_tables
from torchcaps.cli import main
from torchcaps.gpu import availability, verified
from torchcaps.gpu.em import TritonEm
from torchcaps.gpu.softmax import TritonSoftmax
from torchcaps.routing import (
    attention_routing,
    backend_names,
    dynamic_routing,
    heinsen_routing,
    kmeans_routing,
    max_min_routing,
    plan,
    self_attention_routing,
    self_routing,
    vb_routing,
    why_not,
)
from torchcaps.routing.ops import bodies
from torchcaps.votes import DenseVotes

GPU = {"get_device_name": "A GPU", "get_device_capability": (9, 0)}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Tensors of the CPU stand for those of a GPU that exists on paper."""
    monkeypatch.setattr(bodies, "_bodies", {("softmax", "cpu"): TritonSoftmax(), ("em", "cpu"): TritonEm()})
    monkeypatch.setattr(availability, "why_not_triton", lambda: None)
    for name, value in GPU.items():
        monkeypatch.setattr(torch.cuda, name, lambda index, value=value: value)
    monkeypatch.setenv(verified.VARIABLE, str(tmp_path))
    availability.look_at_device.cache_clear()
    verified.read_finding.cache_clear()
    yield tmp_path / "verified.json"
    availability.look_at_device.cache_clear()
    verified.read_finding.cache_clear()


def test_whether_kernels_are_tested_here():
    """Without Triton the tests beside this file are not collected, and this one says so."""
    pytest.importorskip("triton", reason="Triton is not installed: no kernel of GPUs is compiled or interpreted here")


def test_its_kernels_are_for_gpus():
    votes = dense_case().votes()
    assert backend_names() == ("fused", "triton", "chunked", "reference")
    assert why_not("triton", dynamic_routing, votes) == "it has kernels for votes on cuda, these are on cpu"
    with pytest.raises(ValueError, match="'triton' does not take this problem: it has kernels for votes on cuda"):
        dynamic_routing(votes, backend="triton")


def test_without_triton(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(bodies, "_bodies", {("softmax", "cpu"): TritonSoftmax()})
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    availability.look_for_triton.cache_clear()
    assert "Triton is not installed" in why_not("triton", dynamic_routing, dense_case().votes())
    availability.look_for_triton.cache_clear()


def test_old_versions_of_triton_are_refused(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(bodies, "_bodies", {("softmax", "cpu"): TritonSoftmax()})
    monkeypatch.setattr(availability, "find_spec", lambda name: name)
    wanted = "its kernels need Triton 3.4, which comes with torch 2.8; this is Triton 3.3.1"
    for found, reason in {"3.3.1": wanted, "3.4.0": None, "3.10.0+git": None, "none": None}.items():
        monkeypatch.setattr(availability, "triton_version", lambda found=found: found)
        availability.look_for_triton.cache_clear()
        assert availability.look_for_triton() == reason
    availability.look_for_triton.cache_clear()


def test_auto_takes_it_where_it_was_found_right(gpu):
    votes = dense_case().votes()
    planned = plan(dynamic_routing, votes)
    assert planned.chosen == "chunked"
    assert "`torchcaps doctor --verify` does so" in planned.passed_over["triton"]
    verified.remember(0, right=True)
    assert plan(dynamic_routing, votes).chosen == "triton"
    assert plan(dynamic_routing, votes).passed_over == {}
    (identity,) = json.loads(gpu.read_text())
    assert identity.startswith("A GPU, 9.0, ")
    assert f"torch {torch.__version__}" in identity


def test_another_version_is_another_finding(gpu, monkeypatch):
    verified.remember(0, right=True)
    monkeypatch.setattr(verified, "__version__", "0.0.0")
    verified.read_finding.cache_clear()
    assert plan(dynamic_routing, dense_case().votes()).chosen == "chunked"


def test_auto_does_not_take_it_where_it_was_found_wrong(gpu):
    verified.remember(0, right=False)
    assert "found its kernels wrong" in plan(dynamic_routing, dense_case().votes()).passed_over["triton"]


def test_a_damaged_record_is_none(gpu):
    gpu.write_text("{")
    assert "have not been tried" in plan(dynamic_routing, dense_case().votes()).passed_over["triton"]


def test_old_gpus_are_refused(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    availability.look_at_device.cache_clear()
    reason = why_not("triton", dynamic_routing, dense_case().votes())
    assert reason == "its kernels need compute capability 8.0, A GPU has 7.0"


def test_routings_whose_kernels_came_later(gpu):
    votes = dense_case().votes()
    assert why_not("triton", max_min_routing, votes) is None
    assert why_not("triton", vb_routing, votes, beta_a=0.0, beta_u=0.0) is None
    assert why_not("triton", heinsen_routing, votes, beta_use=0.0, beta_ignore=0.0) is None
    assert why_not("triton", self_routing, votes) is None


def test_what_has_no_kernel(gpu):
    votes = dense_case().votes()
    assert "hard" in why_not("triton", kmeans_routing, votes, hard=True)
    assert why_not("triton", attention_routing, votes) == "it has no kernel for attention routing"
    assert why_not("triton", self_attention_routing, votes) == "it has no kernel for self_attention routing"
    exists = torch.zeros(1, 2, 3, 4)
    assert "the votes exist already" in why_not("triton", dynamic_routing, exists)
    many = DenseVotes(torch.zeros(1, 1, 1).expand(2**20, 2**12, 1), torch.zeros(1, 1, 1), sharing="shared")
    assert "with 32 bits, this layer has 4,294,967,296 of them" in why_not("triton", dynamic_routing, many)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("doctor --verify", "there is nothing to verify: torch finds no GPU here"),
        ("benchmark --device cuda", "torch finds no GPU here; `--static sm_90` tells what can be known without one"),
        ("benchmark --static sm_90", "--static tells of kernels of GPUs: give --device cuda, too"),
        ("benchmark --device cuda --static sm_9", "did you mean 'sm_90'?"),
    ],
)
def test_commands_without_a_gpu(command, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(command.split()) == 2
    assert said in capsys.readouterr().err


def test_names_of_kernels_are_whole_in_a_narrow_window():
    kernel = {"kernel": "weight_gradients", "launches": 1, "programs": 1000, "registers": 128, "spilled": 0}
    found = {"case": "a layer", "target": "sm_90", "launches": 1, "flops": 1e9, "bytes": 1e6}
    found["kernels"] = [kernel | {"shared": 17536, "occupancy": 0.25}]
    (table,) = gpu_tables({"static": [found]})
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    assert "weight_gradients" in captured.get()
