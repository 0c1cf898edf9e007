"""Uniform routing: one iteration of the dynamic transcription, and plain means of the votes."""

import pytest
import torch

from support import loops
from support.cases import conv_case, dense_case, randn, tensor_case
from support.situations import CHANGES, SITUATIONS, amended, assert_like_loops, gradcheck, route, with_logits
from torchcaps.routing import uniform_routing

pytestmark = pytest.mark.usefixtures("on_reference")


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
def test_situations(name):
    case = (SITUATIONS | CHANGES)[name]()
    assert_like_loops(route(uniform_routing, case), loops.dynamic(case.field(), num_iterations=1), case)


@pytest.mark.parametrize("options", [{"leaky": True}, {"squash_k": 0.5}], ids=str)
def test_options(options):
    case = tensor_case().given(**options)
    expected = loops.dynamic(case.field(), num_iterations=1, squash_k=options.get("squash_k", 1.0))
    assert_like_loops(route(uniform_routing, case), expected, case)


def test_every_parent_gets_the_same_share():
    assert uniform_routing(randn(2, 5, 4, 3)).coupling.unique().tolist() == [0.25]
    leaky = uniform_routing(randn(2, 5, 4, 3), leaky=True).coupling
    torch.testing.assert_close(leaky, torch.full_like(leaky, 1 / 5))


def test_a_child_under_two_windows_shares_itself_under_global_competition():
    votes = conv_case(batch_size=1, spatial=(6,), kernel=(3,), stride=(2,), num_types=1, num_parents=2).votes()
    coupling = uniform_routing(votes, competition="global").coupling[0]  # positions 0 1 2 and 2 3 4; 5 is seen by none
    assert coupling[:, :, 0].tolist() == [[0.5, 0.5, 0.25], [0.25, 0.5, 0.5]]
    assert uniform_routing(votes, competition="window").coupling.unique().tolist() == [0.5]


@pytest.mark.parametrize("name", ["plain", "amend", "dense"])
def test_gradients(name):
    cases = {
        "plain": lambda: with_logits(tensor_case((1, 4, 3, 2))),
        "amend": lambda: amended(tensor_case((1, 4, 3, 2))).given(leaky=True),
        "dense": dense_case,
    }
    assert gradcheck(uniform_routing, cases[name]())


@pytest.mark.parametrize("option", ["num_iterations", "detach_couplings"])
def test_has_no_iterations(option):
    with pytest.raises(TypeError, match=option):
        uniform_routing(randn(1, 3, 2, 4), **{option: 1})
