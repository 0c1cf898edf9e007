"""A call with tensors of a GPU that is not there: which types and devices come out, that nothing is read back."""

from functools import partial

import pytest
import torch
from torch._subclasses import FakeTensorMode

from torchcaps import doctor
from torchcaps.capsules import Capsules
from torchcaps.gpu import availability, verified
from torchcaps.routing import dynamic_routing, em_routing, plan
from torchcaps.votes import DenseVotes

ROUTINGS = {"dynamic": dynamic_routing, "em": partial(em_routing, beta_a=0.1, beta_u=0.2)}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    availability.look_at_device.cache_clear()
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        yield
    availability.look_at_device.cache_clear()


def dense(dtype):
    """A build of torch for the CPU can make no windows of tensors of a GPU."""
    children = Capsules(torch.zeros(2, 3, 4, dtype=dtype), torch.zeros(2, 3, dtype=dtype))
    return DenseVotes(children, torch.zeros(3, 2, 4, 5))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.usefixtures("gpu")
def test_autocast_routes_as_float32(routing, half):
    with torch.autocast("cuda", half):
        result = ROUTINGS[routing](dense(half), backend="triton")
        for value in (*result.capsules, result.coupling):
            assert (value.dtype, value.device.type) == (torch.float32, "cuda")


@pytest.mark.usefixtures("gpu")
def test_without_autocast_types_are_kept():
    votes = DenseVotes(*(torch.zeros(size, dtype=torch.bfloat16) for size in ((2, 3, 4), (3, 2, 4, 5))))
    assert dynamic_routing(votes, backend="triton").capsules.poses.dtype == torch.bfloat16


@pytest.mark.usefixtures("gpu")
def test_auto_waits_for_verification(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A GPU")
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    verified.read_finding.cache_clear()
    planned = plan(dynamic_routing, dense(torch.float32))
    assert planned.chosen == "chunked"
    assert "torchcaps doctor --verify" in planned.passed_over["triton"]


@pytest.mark.usefixtures("gpu")
def test_the_doctor_tells_what_gpus_run_on(monkeypatch, tmp_path):
    for name, value in {"is_available": True, "device_count": 1, "get_device_name": "A GPU"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *given, value=value: value)
    monkeypatch.setattr(doctor, "_kernels", lambda: doctor.Finding("fused kernels", ""))  # it makes real layers
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    for right, chosen, advice in ((None, "chunked", "`torchcaps doctor --verify`"), (True, "triton", "")):
        verified.read_finding.cache_clear()
        if right is not None:
            verified.remember(0, right=right)
        found = next(finding for finding in doctor.examine() if finding.part == "GPU 0")
        assert found.state.startswith("A GPU, 9.0, ")
        assert found.state.endswith(f": auto takes {chosen}")
        assert advice in found.advice
        assert bool(found.advice) == bool(advice)
    verified.read_finding.cache_clear()
