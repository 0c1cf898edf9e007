"""The other members of the EM family on GPUs against the reference in float64: variational, Heinsen's, self-routing."""

import pytest
import torch

from support.cases import dense_case, rand, randn
from support.gpu_checks import CASES, assert_right, conv1d
from support.situations import with_logits
from torchcaps.routing import heinsen_routing, self_routing, vb_routing
from torchcaps.votes import as_votes

ROUTINGS = {"vb": vb_routing, "heinsen": heinsen_routing, "self": self_routing}
SMALLER = ("dense, shared, mask", "class, matrix", *(name for name in CASES if "masks" in name or "logits" in name))


def learned(name, case):
    """What a call is given, differentiated like the votes; the worth of children has a row for each slot."""
    votes = as_votes(case.votes())
    parents, slots = votes.num_parents, votes.num_slots
    return {
        "vb": {"beta_a": rand(parents), "beta_u": -0.2 * rand(parents)},
        "heinsen": {"beta_use": randn(slots, parents), "beta_ignore": rand(1, parents), "eps_var": 0.05},
        "self": {},
    }[name]


def iterations(name, number):
    return {} if name == "self" else {"num_iterations": number}


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("kind", SMALLER)
def test_every_kind_of_votes(name, kind):
    case = CASES[kind]()
    assert_right(ROUTINGS[name], case, **learned(name, case), **iterations(name, 2))


@pytest.mark.parametrize("name", ["vb", "heinsen"])
@pytest.mark.parametrize("detach", [False, True], ids=["", "detached"])
def test_three_iterations(name, detach):
    case = with_logits(dense_case(num_children=3))
    assert_right(ROUTINGS[name], case, **learned(name, case), num_iterations=3, detach_couplings=detach)


@pytest.mark.parametrize("options", [{"alpha0": 0.1, "kappa0": 10.0, "psi0": 0.3}, {"nu0": 3.1}], ids=str)
def test_priors(options):
    case = conv1d(mask=True, window_mask=True)
    assert_right(vb_routing, case, **learned("vb", case), num_iterations=2, **options)


@pytest.mark.parametrize("name", ROUTINGS)
def test_parents_that_nobody_chooses(name):
    """Their sums are divided by the least mass, to all its digits."""
    case = conv1d()
    case.leaves["activations"].zero_()
    assert_right(ROUTINGS[name], case, **learned(name, case), **iterations(name, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_smaller_types(name, dtype):
    case = conv1d(mask=True)
    assert_right(ROUTINGS[name], case, dtype, **learned(name, case), **iterations(name, 2))
