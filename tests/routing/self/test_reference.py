"""Self-routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import more_loops
from support.cases import rand, randn
from support.situations import GRADIENTS, SITUATIONS, assert_like_loops, gradcheck, route, with_activations
from torchcaps.routing import em_routing, self_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations(name):
    case = with_activations(SITUATIONS[name]())
    assert_like_loops(route(self_routing, case), more_loops.self_routing(case.field()), case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(self_routing, with_activations(GRADIENTS[name]()))


def test_it_is_one_m_step_of_em():
    votes, activations, logits = randn(2, 7, 3, 4), rand(2, 7), randn(2, 7, 3)
    ours = self_routing(votes, activations, initial_logits=logits)
    options = {"beta_a": 0.0, "beta_u": 0.0, "num_iterations": 1, "activation": "mixing"}
    theirs = em_routing(votes, activations, initial_logits=logits, **options)
    torch.testing.assert_close(ours.capsules.poses, theirs.capsules.poses)
    torch.testing.assert_close(ours.capsules.activations, theirs.capsules.activations)


def test_activations_are_needed():
    with pytest.raises(ValueError, match="self-routing weighs children by their activations"):
        self_routing(randn(2, 7, 3, 4))
