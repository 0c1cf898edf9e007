"""Max-min routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import more_loops
from support.cases import randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, amended, assert_like_loops, gradcheck, route
from torchcaps.routing import max_min_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
def test_situations(name):
    case = (SITUATIONS | CHANGES)[name]()
    assert_like_loops(route(max_min_routing, case), more_loops.max_min(case.field()), case)


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
@pytest.mark.parametrize("squash_k", [0.5, 3])
def test_options(num_iterations, squash_k):
    case = tensor_case()
    options = {"num_iterations": num_iterations, "squash_k": squash_k}
    assert_like_loops(route(max_min_routing, case, **options), more_loops.max_min(case.field(), **options), case)


@pytest.mark.parametrize("name", [name for name in GRADIENTS if "full" not in name and name not in ("mask", "class")])
def test_gradients(name):
    case = GRADIENTS[name]()  # not those with two parents and no windows: couplings of 0 and 1 jump
    assert gradcheck(max_min_routing, case)


def test_gradients_amended():
    assert gradcheck(max_min_routing, amended(GRADIENTS["plain"]()))


def test_two_parents_are_always_told_apart():
    coupling = max_min_routing(randn(3, 9, 2, 4)).coupling
    assert coupling.unique().tolist() == [0.0, 1.0]
    assert torch.equal(coupling.sum(-1), torch.ones(3, 9, dtype=torch.float64))


def test_at_ties_the_gradient_goes_to_the_first_parent():
    votes = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    votes[..., 0] = torch.tensor([1.0, 1.0, 0.5])
    logits = torch.tensor([[[2.0, 2.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    result = max_min_routing(votes, initial_logits=logits, num_iterations=1)
    result.capsules.poses[0, 1, 0].backward()
    # c_1 = (b_1 - b_2) / (b_0 - b_2), the first parent being the largest: grows with b_1, falls with b_0
    gradient = logits.grad[0, 0]
    assert gradient[1] > 0
    assert torch.isclose(gradient[0], -gradient[1])
    assert gradient[2] == 0
