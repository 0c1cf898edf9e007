"""Every launch of a call compiles for its GPU, and next to nothing spills."""

import pytest

from support.gpu_calls import OTHERS, REPRESENTATIVE
from torchcaps.benchmark.gpu import examine_static
from torchcaps.gpu.static import examine, on_paper

MOST_SPILLED = 64  # bytes of a thread
MOST_SHARED = 99 * 1024  # bytes of a program, on the GPUs that have least


def check(target, call):
    with on_paper():
        launches = examine(target, (REPRESENTATIVE | OTHERS)[call])
    assert {launch.kernel for launch in launches} >= {"moments", "gradients", "weight_gradients", "fold"}
    spilled = {launch.kernel: launch.spilled for launch in launches if launch.spilled > MOST_SPILLED}
    assert not spilled
    assert max(launch.shared for launch in launches) <= MOST_SHARED
    return launches


@pytest.mark.parametrize("call", REPRESENTATIVE)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_representative_calls_compile(target, call):
    assert all(launch.registers > 0 for launch in check(target, call))


@pytest.mark.slow
@pytest.mark.parametrize("call", OTHERS)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_every_call_compiles(target, call):
    check(target, call)


@pytest.mark.slow
def test_what_is_known_without_a_gpu():
    (found,) = examine_static("sm_90", ["digitcaps"], batch_size=4)
    assert found["launches"] == sum(kernel["launches"] for kernel in found["kernels"])
    assert all(kernel["registers"] > 0 and 0 < kernel["occupancy"] <= 1 for kernel in found["kernels"])
