"""The chunked backend's memory, each measurement in a process of its own."""

import subprocess
import sys

import pytest

STEP = """
import sys
import torch
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.routing import use_backend

routing, backend, batch_size, num_children, num_parents = *sys.argv[1:3], *map(int, sys.argv[3:])
torch.set_num_threads(1)
layer = nn.DenseCaps(num_children, num_parents, 8, 16, routing=nn.create_routing(routing))
poses = torch.randn(batch_size, num_children, 8, requires_grad=True)
# whatever a backward pass needs once is loaded by a small one
small = nn.DenseCaps(4, 2, 8, 16, routing=nn.create_routing(routing))
small(Capsules.from_poses(poses[:2, :4])).poses.sum().backward()
layer.weight.grad, poses.grad = torch.zeros_like(layer.weight), torch.zeros_like(poses)
# VmHWM is of this program alone; ru_maxrss remembers the process it was started from
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
before = peak()
with use_backend(backend):
    layer(Capsules.from_poses(poses)).activations.square().sum().backward()
assert layer.weight.grad.any() and poses.grad.isfinite().all()
print(peak() - before, peak())
"""


def megabytes(routing, backend, batch_size, num_children, num_parents):
    """What a forward and backward pass adds to the peak, and the peak of the whole process."""
    arguments = [routing, backend, str(batch_size), str(num_children), str(num_parents)]
    run = subprocess.run([sys.executable, "-c", STEP, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return tuple(float(value) for value in run.stdout.split())


@pytest.mark.parametrize("routing", ["dynamic", pytest.param("em", marks=pytest.mark.slow)])
def test_capsnet_needs_at_most_a_third_of_the_reference(routing):
    reference, _ = megabytes(routing, "reference", 128, 1152, 10)
    chunked, _ = megabytes(routing, "chunked", 128, 1152, 10)
    fused, _ = megabytes(routing, "fused", 128, 1152, 10)
    votes = 128 * 1152 * 10 * 16 * 4 / 2**20
    assert reference > votes  # it forms them: the measurement sees what it should
    assert chunked <= reference / 3, f"chunked {chunked:.0f} MB, reference {reference:.0f} MB"
    assert fused <= votes, f"fused {fused:.0f} MB, votes {votes:.0f} MB"


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_a_hundred_classes_and_4096_children_train_within_four_gigabytes(routing):
    _, peak = megabytes(routing, "chunked", 64, 4096, 100)
    assert peak < 4096, f"{peak:.0f} MB"
