"""What `torchcaps doctor --verify` does on a GPU, here in the interpreter."""

import pytest
import torch

from torchcaps.benchmark.gpu import KINDS, check_on, rounding, shares, small_cases
from torchcaps.gpu import layer
from torchcaps.routing import registry

CASES = {case.name: case for case in small_cases()}


@pytest.mark.parametrize("name", ["heinsen, dense {}", "self, class {}"])
def test_right_kernels_pass(name):
    checks = list(check_on("cpu", [CASES[name]], KINDS[1:3]))
    assert [check.dtype for check in checks] == ["float32", "float32, tf32x3"]
    assert all(check.passed for check in checks)
    assert torch.get_float32_matmul_precision() == "highest"


def test_wrong_kernels_do_not(monkeypatch):
    monkeypatch.setattr(
        layer.Layer,
        "moments",
        lambda *given, moments=layer.Layer.moments, **options: scaled(moments(*given, **options)),
    )
    (check,) = check_on("cpu", [CASES["dynamic, dense {}"]], KINDS[1:2])
    assert not check.passed


def scaled(sums):
    return sums._replace(first=1.01 * sums.first)


def test_every_routing_with_a_kernel_is_verified():
    verified = {case.routing for case in CASES.values()}
    known = set(registry.routing_names())
    assert verified == known - {"attention", "self_attention"}


def test_share_of_the_roofline():
    case = CASES["dynamic, dense {}"]
    roofline = {"bytes_per_second": float(case.bytes_moved()), "flops_per_second": 1e30}
    found = shares(case, {"forward_ms": 2000.0, "forward_backward_ms": 4000.0}, roofline)
    assert found == {"forward_roofline": 0.5, "forward_backward_roofline": 0.75}
    assert shares(case, {"refused": "no"}, roofline) == {}


def test_rounding_is_given_back():
    with pytest.raises(RuntimeError), rounding("medium"):
        raise RuntimeError
    assert torch.get_float32_matmul_precision() == "highest"
