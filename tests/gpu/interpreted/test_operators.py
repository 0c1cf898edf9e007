"""The operators of GPUs as torch sees them: sound, compiled without breaks, and refusals in sentences."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.cases import class_case, conv_case, dense_case
from support.gpu_checks import conv1d, conv2d
from support.situations import amended, partially, with_logits
from torchcaps.gpu.layer import Slots
from torchcaps.routing import (
    dynamic_routing,
    em_routing,
    entropy_routing,
    heinsen_routing,
    kmeans_routing,
    max_min_routing,
    plan,
    self_routing,
    uniform_routing,
    vb_routing,
    why_not,
)
from torchcaps.routing.ops import tables
from torchcaps.votes import DenseVotes
from torchcaps.windows import Windows

# Every routing that has a kernel, every kind of votes, sharing and competition; few slots.
CALLS = {
    "dynamic, dense": (dynamic_routing, lambda: dense_case(batch_size=1, num_children=2, num_parents=2)),
    "max-min, class, shared": (max_min_routing, lambda: class_case(batch_size=1, spatial=(1, 2), sharing="shared")),
    "K-Means, conv1d, logits, position": (
        partial(kmeans_routing, metric="euclidean"),
        lambda: with_logits(conv1d(batch_size=1, mask=True)).given(competition="position"),
    ),
    "entropy, conv2d, global": (entropy_routing, lambda: conv2d(batch_size=1).given(competition="global")),
    "uniform, dense, partial": (uniform_routing, lambda: partially(amended(dense_case(num_children=2)))),
    "em, conv1d, window mask": (
        partial(em_routing, beta_a=0.1, beta_u=0.2),
        lambda: conv1d(batch_size=1, window_mask=True),
    ),
    "vb, class, matrix": (
        partial(vb_routing, beta_a=0.1, beta_u=0.2),
        lambda: class_case(batch_size=1, spatial=(1, 2), pose="matrix"),
    ),
    "heinsen, dense, factorised": (
        partial(heinsen_routing, beta_use=0.1, beta_ignore=0.2),
        lambda: dense_case(num_children=2, sharing="factorised"),
    ),
    "self, conv1d, global": (self_routing, lambda: conv1d(batch_size=1).given(competition="global")),
}


def route(routing, case, **leaves):
    """What a layer asks for: poses and activations."""
    iterations = {} if routing in (uniform_routing, self_routing) else {"num_iterations": 2}
    return routing(case.votes(**leaves), backend="triton", **iterations, **case.options)


class Calls(TorchDispatchMode):
    """Gathers what operators of this package are called with."""

    def __init__(self):
        super().__init__()
        self.gathered = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "torchcaps":
            assert not options
            self.gathered[function] = arguments
        return function(*arguments, **(options or {}))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", CALLS)
def test_operators_are_sound(name):
    """Forward, backward and couplings with the arguments of a real call."""
    routing, make = CALLS[name]
    case = make()
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in case.leaves.items()}
    with Calls() as calls:
        result = route(routing, case, **leaves)
        assert result.coupling.isfinite().all()
        sum(part.sum() for part in result.capsules).backward()
    assert sorted(operator._opname.split("_", 1)[1] for operator in calls.gathered) == [
        "couplings",
        "routing",
        "routing_backward",
    ]
    for operator, arguments in calls.gathered.items():
        given = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in arguments]
        tests = ["test_schema", "test_faketensor"]
        if operator._opname.endswith("_routing"):
            tests.append("test_autograd_registration")
            given = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
        torch.library.opcheck(operator, given, test_utils=tests)


@pytest.mark.parametrize("name", CALLS)
def test_compiles_without_breaks(name):
    routing, make = CALLS[name]
    case = make()
    leaves = [leaf.clone().requires_grad_() for leaf in case.leaves.values()]

    def solve(*leaves):
        return tuple(route(routing, case, **dict(zip(case.leaves, leaves))).capsules)

    torch._dynamo.reset()
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")(*leaves)
    expected = solve(*leaves)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (
        torch.autograd.grad(sum(part.sum() for part in parts), leaves, materialize_grads=True)
        for parts in (compiled, expected)
    )
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
