"""Heinsen routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import more_loops
from support.cases import rand, randn, tensor_case
from support.situations import GRADIENTS, SITUATIONS, assert_like_loops, gradcheck, route, with_activations
from torchcaps.routing import heinsen_routing
from torchcaps.votes import as_votes

pytestmark = pytest.mark.usefixtures("on_reference")


def heinsen_case(make):
    """A case with activations, and betas (slots, J) for it."""
    case = with_activations(make())
    votes = as_votes(case.votes())
    return case, randn(votes.num_slots, votes.num_parents), randn(votes.num_slots, votes.num_parents)


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations(name):
    case, use, ignore = heinsen_case(SITUATIONS[name])
    expected = more_loops.heinsen(case.field(), use.numpy(), ignore.numpy(), eps_var=0.1)
    assert_like_loops(route(heinsen_routing, case, beta_use=use, beta_ignore=ignore, eps_var=0.1), expected, case)


@pytest.mark.parametrize("num_iterations", [1, 2, 5])
def test_options(num_iterations):
    case, use, ignore = heinsen_case(tensor_case)
    options = {"num_iterations": num_iterations, "eps_var": 0.01}
    expected = more_loops.heinsen(case.field(), use.numpy(), ignore.numpy(), **options)
    assert_like_loops(route(heinsen_routing, case, beta_use=use, beta_ignore=ignore, **options), expected, case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    case, use, ignore = heinsen_case(GRADIENTS[name])
    assert gradcheck(heinsen_routing, case, beta_use=use, beta_ignore=ignore, eps_var=0.3)


def test_betas_of_parents_are_those_of_every_child():
    votes, activations, use, ignore = randn(2, 7, 3, 4), rand(2, 7), randn(3), randn(3)
    ours = heinsen_routing(votes, activations, beta_use=use, beta_ignore=ignore)
    theirs = heinsen_routing(votes, activations, beta_use=use.expand(7, 3), beta_ignore=ignore.expand(7, 3))
    assert torch.equal(ours.capsules.activations, theirs.capsules.activations)


def test_a_child_without_activation_counts_for_nothing():
    votes, activations = randn(1, 4, 3, 4), rand(1, 4)
    activations[:, 0] = 0
    changed = votes.clone()
    changed[:, 0] = 100.0
    one, other = (heinsen_routing(v, activations, beta_use=1.0, beta_ignore=0.5).capsules for v in (votes, changed))
    torch.testing.assert_close(one.poses, other.poses)
    torch.testing.assert_close(one.activations, other.activations)
