"""Entropy routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import loops
from support.cases import randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, amended, assert_like_loops, gradcheck, route
from torchcaps.routing import entropy_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
def test_situations(name):
    case = (SITUATIONS | CHANGES)[name]()
    expected = loops.entropy(case.field(), alpha=(0.5, 0.5, 0.5))
    assert_like_loops(route(entropy_routing, case, alpha=0.5), expected, case)


@pytest.mark.parametrize("alpha", [[0.7], [1.0, 0.3], (2, 1, 0.5, 0.4)], ids=str)
def test_one_alpha_per_iteration(alpha):
    case = tensor_case()
    result = route(entropy_routing, case, alpha=alpha, num_iterations=len(alpha))
    assert_like_loops(result, loops.entropy(case.field(), alpha), case)


def test_defaults_are_three_iterations_at_a_tenth():
    case = tensor_case()
    assert_like_loops(route(entropy_routing, case), loops.entropy(case.field(), (0.1, 0.1, 0.1)), case)


def test_the_last_alpha_enters_no_couplings():
    votes = randn(2, 7, 3, 4)
    one, other = (entropy_routing(votes, alpha=[0.5, 0.4, last]).capsules.poses for last in (0.3, 0.03))
    assert torch.equal(one, other)


def test_the_longest_parent_is_shorter_than_one():
    capsules = entropy_routing(100 * randn(2, 7, 3, 4)).capsules
    assert capsules.activations.max() < 1
    torch.testing.assert_close(capsules.poses.norm(dim=-1), capsules.activations)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(entropy_routing, GRADIENTS[name](), alpha=[2.0, 1.5, 1.0])


@pytest.mark.parametrize("name", ["plain", "dense full", "conv global"])
def test_gradients_amended(name):
    assert gradcheck(entropy_routing, amended(GRADIENTS[name]()), alpha=[2.0, 1.5, 1.0])


@pytest.mark.parametrize("option", ["leaky", "squash_k", "detach_couplings", "inverse_temperature"])
def test_options_of_other_routings_are_refused(option):
    with pytest.raises(TypeError, match=option):
        entropy_routing(randn(1, 3, 2, 4), **{option: 1.0})


def test_messages():
    votes = randn(1, 3, 2, 4)
    with pytest.raises(ValueError, match="alpha needs one number for each of the 3 iterations, got 2"):
        entropy_routing(votes, alpha=[0.2, 0.1])
    with pytest.raises(ValueError, match="alpha must be a positive finite number, got 0"):
        entropy_routing(votes, alpha=[0.2, 0.1, 0])
    with pytest.raises(TypeError, match="alpha must be a positive number, got 'small'"):
        entropy_routing(votes, num_iterations=1, alpha=["small"])
