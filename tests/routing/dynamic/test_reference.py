"""Dynamic routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import loops
from support.cases import randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, amended, assert_like_loops, gradcheck, route
from torchcaps.capsules import squash
from torchcaps.routing import dynamic_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
def test_situations(name, leaky):
    case = (SITUATIONS | CHANGES)[name]().given(leaky=leaky)
    assert_like_loops(route(dynamic_routing, case), loops.dynamic(case.field()), case)


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
@pytest.mark.parametrize("squash_k", [0.5, 1.0, 3])
def test_options(num_iterations, squash_k):
    case = tensor_case()
    options = {"num_iterations": num_iterations, "squash_k": squash_k}
    assert_like_loops(route(dynamic_routing, case, **options), loops.dynamic(case.field(), **options), case)


def test_defaults_are_those_of_the_paper():
    case = tensor_case()
    explicit = {
        "num_iterations": 3,
        "squash_k": 1.0,
        "leaky": False,
        "competition": "window",
        "detach_couplings": False,
    }
    assert torch.equal(
        dynamic_routing(case.votes()).capsules.poses, dynamic_routing(case.votes(), **explicit).capsules.poses
    )


def test_no_trace_unless_asked_for():
    assert dynamic_routing(randn(1, 3, 2, 4)).trace is None


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(dynamic_routing, GRADIENTS[name]())


@pytest.mark.parametrize("name", ["plain", "dense full", "conv window", "conv global", "conv2d position"])
def test_gradients_leaky_and_amended(name):
    assert gradcheck(dynamic_routing, amended(GRADIENTS[name]()), leaky=True)


def test_detached_couplings_leave_the_gradient_of_the_last_weighted_sum():
    votes, logits, weight = randn(2, 7, 3, 4).requires_grad_(), randn(2, 7, 3).requires_grad_(), randn(2, 3, 4)
    result = dynamic_routing(votes, initial_logits=logits, detach_couplings=True)
    (result.capsules.poses * weight).sum().backward()

    constant = dynamic_routing(votes.detach(), initial_logits=logits.detach()).coupling
    again = votes.detach().requires_grad_()
    (squash(torch.einsum("bij,bijd->bjd", constant, again)) * weight).sum().backward()
    torch.testing.assert_close(votes.grad, again.grad, rtol=1e-12, atol=1e-12)
    assert logits.grad is None

    full = votes.detach().requires_grad_()
    (dynamic_routing(full, initial_logits=logits.detach()).capsules.poses * weight).sum().backward()
    assert (full.grad - votes.grad).abs().max() > 1e-3  # the couplings' own gradient is not negligible


def test_detached_couplings_do_not_change_the_values():
    votes = randn(2, 7, 3, 4)
    assert torch.equal(
        dynamic_routing(votes, detach_couplings=True).capsules.poses, dynamic_routing(votes).capsules.poses
    )
