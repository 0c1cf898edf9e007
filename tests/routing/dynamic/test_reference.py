"""Dynamic routing against its loop-by-loop transcription, and its gradients against finite differences."""

import loops
import pytest
import torch
from cases import class_case, conv_case, dense_case, randn, tensor_case
from situations import (
    CHANGES,
    SITUATIONS,
    amended,
    assert_like_loops,
    conv1d_case,
    gradcheck,
    route,
    with_logits,
)

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
    explicit = {"num_iterations": 3, "squash_k": 1.0, "leaky": False, "competition": "window", "detach_couplings": False}
    assert torch.equal(
        dynamic_routing(case.votes()).capsules.poses, dynamic_routing(case.votes(), **explicit).capsules.poses
    )


def test_no_trace_unless_asked_for():
    assert dynamic_routing(randn(1, 3, 2, 4)).trace is None


GRADIENTS = {
    "plain": lambda: with_logits(tensor_case((1, 4, 3, 2))),
    "leaky": lambda: with_logits(tensor_case((1, 4, 3, 2))).given(leaky=True),
    "amend": lambda: amended(tensor_case((1, 4, 3, 2))),
    "dense full": lambda: amended(dense_case(mask=True)),
    "dense factorised": lambda: dense_case(weights="factorised"),
    "dense shared matrix": lambda: dense_case(weights="shared", pose="matrix"),
    "conv window": lambda: amended(conv1d_case(mask=True)),
    "conv global": lambda: with_logits(conv1d_case(window_mask=True)).given(competition="global"),
    "conv global leaky": lambda: conv1d_case().given(competition="global", leaky=True),
    "conv2d global": lambda: conv_case(batch_size=1, spatial=(4, 2), num_types=1).given(competition="global"),
    "class": lambda: class_case(batch_size=1, mask=True),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(dynamic_routing, GRADIENTS[name]())


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
