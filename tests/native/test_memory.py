"""When scratch memory is not to be had, a kernel raises MemoryError, and works again with the next call.

The cases run in a process of its own that limits its address space. Their results are small and their scratch is
large, so that the kernels are what fails, not the tensors around them.
"""

import copy
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import dynamic_routing, em_routing
from torchcaps.votes import ConvVotes, DenseVotes

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not())),
    pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer takes all addresses"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here"),
]

HEADROOM = 24 << 20  # bytes of address space that the cases may still take
EM = {"beta_a": torch.zeros(()), "beta_u": torch.zeros(()), "backend": "fused"}


def few_samples(scale: int) -> Callable:
    """Votes that are formed and kept."""
    votes = DenseVotes(torch.randn(1, 250 * scale, 1), torch.randn(64, 1, 16), sharing="shared")
    return lambda: dynamic_routing(votes, backend="fused")


def many_samples(scale: int) -> Callable:
    """Poses that are packed lane by lane."""
    votes = DenseVotes(torch.randn(5, 3000 * scale, 4), torch.randn(8, 4, 4), sharing="shared", bias=torch.randn(8, 4))
    return lambda: dynamic_routing(votes, backend="fused", num_iterations=2)


def many_samples_backward(scale: int) -> Callable:
    """Coefficients of the gradients of votes."""
    poses = torch.randn(5, 100 * scale, 1, requires_grad=True)
    votes = DenseVotes(poses, torch.randn(64, 1, 16), sharing="shared", bias=torch.randn(64, 16))
    result = dynamic_routing(votes, backend="fused").capsules.poses.sum()
    return lambda: torch.autograd.grad(result, poses, retain_graph=True)


def couplings(scale: int) -> Callable:
    poses = torch.randn(1, 8000 * scale, 1, requires_grad=True)  # so that the state is kept
    votes = DenseVotes(poses, torch.randn(1, 1, 16), sharing="shared")
    result = dynamic_routing(votes, backend="fused", num_iterations=2)
    return lambda: copy.copy(result).coupling


def shared_weights(scale: int) -> Callable:
    poses = torch.randn(100, 3000 * scale, 1)
    votes = DenseVotes(poses, torch.randn(3, 1, 4), sharing="shared")
    return lambda: dynamic_routing(votes, backend="fused", num_iterations=2)


def em_padded(scale: int, requires_grad: bool = False) -> DenseVotes:
    """Weights that are padded from one parent to a register of them."""
    poses = torch.randn(1, 2500 * scale, 4, requires_grad=requires_grad)
    return DenseVotes(Capsules(poses, torch.rand(1, 2500 * scale)), torch.randn(2500 * scale, 1, 4, 4))


def em_forward(scale: int) -> Callable:
    votes = em_padded(scale)
    return lambda: em_routing(votes, **EM)


def em_couplings(scale: int) -> Callable:
    result = em_routing(em_padded(scale, requires_grad=True), **EM)
    return lambda: copy.copy(result).coupling


def em_windows(scale: int) -> Callable:
    """The Gaussians of all windows of an example."""
    children = Capsules(torch.randn(1, 200 * scale, 1, 16), torch.rand(1, 200 * scale, 1))
    votes = ConvVotes(children, torch.randn(1, 1, 8, 4, 4), pose="matrix")
    return lambda: em_routing(votes, **EM, competition="window")


def em_backward(scale: int) -> Callable:
    """Coefficients of the gradients of votes."""
    poses = torch.randn(1, 400 * scale, 1, requires_grad=True)
    votes = DenseVotes(Capsules(poses, torch.rand(1, 400 * scale)), torch.randn(64, 1, 2), sharing="shared")
    result = em_routing(votes, **EM).capsules.poses.sum()
    return lambda: torch.autograd.grad(result, poses, retain_graph=True)


def with_logits(scale: int, requires_grad: bool = False) -> Callable:
    """Weights that are padded as those of EM routing."""
    poses = torch.randn(1, 2500 * scale, 4, requires_grad=requires_grad)
    votes, logits = DenseVotes(poses, torch.randn(2500 * scale, 1, 4, 4)), torch.zeros(1, 2500 * scale, 1)
    return lambda: dynamic_routing(votes, initial_logits=logits, backend="fused")


def with_logits_backward(scale: int) -> Callable:
    """Packed gradients of weights."""
    weight = torch.randn(2500 * scale, 1, 1, 1, requires_grad=True)
    votes, logits = DenseVotes(torch.randn(1, 2500 * scale, 1), weight), torch.zeros(1, 2500 * scale, 1)
    result = dynamic_routing(votes, initial_logits=logits, backend="fused").capsules.poses.sum()
    return lambda: torch.autograd.grad(result, weight, retain_graph=True)


def with_logits_couplings(scale: int) -> Callable:
    result = with_logits(scale, requires_grad=True)()
    return lambda: copy.copy(result).coupling


MAKERS = (
    *(few_samples, many_samples, many_samples_backward, couplings, shared_weights),
    *(with_logits, with_logits_backward, with_logits_couplings),
)
EM_MAKERS = (em_forward, em_windows, em_backward, em_couplings)
CASES = {make.__name__: make for make in MAKERS + EM_MAKERS}
ENTRIES = {
    "many_samples_backward": "softmax_backward",
    "couplings": "softmax_couplings",
    "with_logits_backward": "softmax_backward",
    "with_logits_couplings": "softmax_couplings",
    "em_backward": "em_backward",
    "em_couplings": "em_coupling",
}


def values_of(outcome) -> list[torch.Tensor]:
    if isinstance(outcome, torch.Tensor):
        return [outcome]
    return list(outcome) if isinstance(outcome, tuple) else [outcome.capsules.poses]


def attempt(action: Callable) -> str:
    library.release_scratch()
    try:
        action()
    except MemoryError as error:
        return f"MemoryError: {error}"
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "no error"


def starve(num_threads: int) -> dict[str, dict]:
    """Every case in little memory, and the same problem on a small scale before, meanwhile and after."""
    torch.set_num_threads(num_threads)
    small = {name: make(1) for name, make in CASES.items()}
    before = {name: values_of(action()) for name, action in small.items()}  # also starts all threads
    large = {name: make(100) for name, make in CASES.items()}
    library.release_scratch()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, unlimited[1]))
    failures = {name: attempt(action) for name, action in large.items()}
    library.release_scratch()
    meanwhile = {name: values_of(action()) for name, action in small.items()}
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    after = {name: values_of(action()) for name, action in small.items()}
    return {
        name: {
            "failure": failures[name],
            "same": all(map(torch.equal, before[name], meanwhile[name])),
            "same after": all(map(torch.equal, before[name], after[name])),
        }
        for name in CASES
    }


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 3])
def outcomes(request):
    # What is freed goes back to the system; no thread starts late, on a busy machine, in the little memory there is.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "TORCHCAPS_HELPERS": "openmp"}
    command = [sys.executable, __file__, str(request.param)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, f"the process ended with {finished.returncode}: {finished.stderr[-3000:]}"
    return json.loads(finished.stdout)


@pytest.mark.parametrize("name", CASES)
def test_out_of_memory_is_raised_and_survived(outcomes, name):
    outcome = outcomes[name]
    entry = ENTRIES.get(name, "em_forward" if name.startswith("em") else "softmax_forward")
    assert outcome["failure"] == (
        f"MemoryError: torchcaps_{entry}_f32: out of memory for scratch space: use a smaller batch, or another backend"
    )
    assert outcome["same"]
    assert outcome["same after"]


if __name__ == "__main__":
    print(json.dumps(starve(int(sys.argv[1]))))
