"""Attention routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import more_loops
from support.cases import randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, assert_like_loops, gradcheck, route
from torchcaps.routing import attention_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
def test_situations(name):
    case = (SITUATIONS | CHANGES)[name]()
    assert_like_loops(route(attention_routing, case), more_loops.attention(case.field()), case)


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
def test_options(num_iterations):
    case, scale, shift = tensor_case(), randn(4), randn(4)
    options = {"num_iterations": num_iterations, "squash_k": 0.5, "eps": 1e-3}
    expected = more_loops.attention(case.field(), scale=scale.numpy(), shift=shift.numpy(), **options)
    assert_like_loops(route(attention_routing, case, scale=scale, shift=shift, **options), expected, case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(attention_routing, GRADIENTS[name](), eps=0.1)


def test_gradients_of_scale_and_shift():
    assert gradcheck(attention_routing, GRADIENTS["plain"](), eps=0.1, scale=randn(2), shift=randn(2))


def test_one_iteration_is_a_uniform_sum():
    votes = randn(2, 5, 4, 3)
    result = attention_routing(votes, num_iterations=1)
    assert torch.allclose(result.coupling, torch.full_like(result.coupling, 0.25))
    expected = torch.nn.functional.layer_norm(votes.mean(2 - 1) * 5 / 4, (3,))
    torch.testing.assert_close(result.capsules.poses, expected)


def test_a_wrong_scale_is_refused():
    with pytest.raises(ValueError, match=r"scale must have shape \(D,\) = \(4,\), got \(3,\)"):
        attention_routing(randn(2, 5, 3, 4), scale=randn(3))
