"""Self-attention routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import more_loops
from support.cases import randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, amended, assert_like_loops, gradcheck, route
from torchcaps.routing import self_attention_routing
from torchcaps.votes import as_votes

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_situations(name, biased):
    case = (SITUATIONS | CHANGES)[name]()
    votes = as_votes(case.votes())
    bias = randn(votes.num_slots, votes.num_parents) if biased else None
    expected = more_loops.self_attention(case.field(), None if bias is None else bias.numpy())
    assert_like_loops(route(self_attention_routing, case, bias=bias), expected, case)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    assert gradcheck(self_attention_routing, GRADIENTS[name]())


def test_gradients_of_the_bias_amended():
    assert gradcheck(self_attention_routing, amended(GRADIENTS["plain"]()), bias=randn(4, 3))


def test_a_bias_of_child_types_is_repeated_and_one_of_parents_shared():
    case = tensor_case((2, 6, 3, 4))
    types, parents = randn(2, 3), randn(3)
    for given, whole in ((types, types.repeat(3, 1)), (parents, parents.expand(6, 3))):
        ours, theirs = (self_attention_routing(case.votes(), bias=bias).capsules.poses for bias in (given, whole))
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match=r"bias must be a number, one per parent type, or one per child"):
        self_attention_routing(case.votes(), bias=randn(4, 3))


def test_short_sums_are_kept_by_the_squash():
    """squash'(s) is |s| near 0, where the usual squash is |s|^2."""
    votes = torch.full((1, 1, 2, 1), 2e-4, dtype=torch.float64)
    lengths = self_attention_routing(votes).capsules.activations
    torch.testing.assert_close(lengths, torch.full_like(lengths, 1e-4), rtol=1e-3, atol=0)
