"""The operators of GPUs as torch sees them: sound, compiled without breaks, and refusals in sentences."""

import pytest
import torch

from support.cases import conv_case, dense_case, randn
from support.gpu_checks import conv1d
from torchcaps.gpu.layer import Slots
from torchcaps.routing import dynamic_routing, em_routing, plan, vb_routing, why_not
from torchcaps.routing.ops import tables
from torchcaps.routing.ops.em import EM, EmInputs, EmKernelOptions
from torchcaps.routing.ops.operator import flatten
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import DenseVotes
from torchcaps.windows import Windows


def leaves_of(inputs):
    return [
        value.detach().clone().requires_grad_(value.is_floating_point()) if isinstance(value, torch.Tensor) else value
        for value in flatten(inputs)
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_operators_are_sound():
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    votes = lower(dense_case(num_children=2, num_parents=2).votes())
    softmax = SoftmaxInputs(votes._replace(activations=None), None, None, SoftmaxOptions(0, 2))
    torch.library.opcheck(SOFTMAX.forward, (*leaves_of(softmax), True), test_utils=tests)
    votes = lower(conv1d(batch_size=1).votes(), windows_compete=True)
    betas = randn(votes.num_parents)
    options = EmKernelOptions(0, 1, (0.1, 0.2), (1.0, 1.0))
    torch.library.opcheck(
        EM.forward, (*leaves_of(EmInputs(votes, betas, betas, None, None, None, options)), True), test_utils=tests
    )


def test_compiles_without_breaks():
    poses, weight = randn(2, 2, 2).requires_grad_(), randn(2, 2, 2, 3).requires_grad_()

    def solve(poses, weight):
        return dynamic_routing(DenseVotes(poses, weight), num_iterations=2, backend="triton").capsules.poses

    expected = solve(poses, weight)
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")(poses, weight)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (torch.autograd.grad(x.sum(), (poses, weight)) for x in (compiled, expected))
    torch.testing.assert_close(ours, theirs)


def test_refusals():
    votes = dense_case().votes()
    planned = plan(dynamic_routing, votes)
    assert planned.chosen == "chunked"
    assert planned.reasons["triton"] is None
    assert "the interpreter of Triton is for tests" in planned.passed_over["triton"]
    assert "can run; not unasked" in str(planned)
    assert why_not("fused", dynamic_routing, votes) == "it has kernels for votes on no device, these are on cpu"
    wide = DenseVotes(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2, 20_000))
    assert "at most 16384 entries of it; 1 x 20000 are 32768" in why_not("triton", dynamic_routing, wide)
    half = DenseVotes(torch.zeros(1, 1, 2, dtype=torch.float64), torch.zeros(1, 1, 2, 2, dtype=torch.float64))
    assert why_not("triton", em_routing, conv_case().votes(), beta_a=0.0, beta_u=0.0) is None
    assert why_not("triton", dynamic_routing, half) is None
    assert why_not("triton", vb_routing, conv_case().votes(), beta_a=0.0, beta_u=0.0) is None


def test_tables_are_made_once(monkeypatch):
    """Who holds a child follows from windows and device, and a second call makes no lookups."""
    made, counts = [], []
    windows_children, slots_of = Windows.children, Slots._of
    monkeypatch.setattr(Windows, "children", lambda *given: made.append("children") or windows_children(*given))
    monkeypatch.setattr(Slots, "_of", staticmethod(lambda *given: made.append("slots") or slots_of(*given)))
    tables._kept_children.cache_clear()
    for _ in range(2):
        votes = conv1d(sharing="shared").votes()
        votes.poses.requires_grad_()
        votes.weight.requires_grad_()
        result = dynamic_routing(votes, competition="global", num_iterations=1, backend="triton")
        result.capsules.poses.sum().backward()
        counts.append(len(made))
    assert counts[0] == counts[1] > 0
