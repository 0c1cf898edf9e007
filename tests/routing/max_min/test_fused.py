"""Max-min routing on the fused kernel against the reference: values, couplings and gradients."""

import pytest
import torch

from support.cases import Case, conv_case, dense_case, randn
from support.situations import GRADIENTS, amended, gradcheck, with_logits
from support.softmax_checks import DESCRIBED, assert_like_reference, shrunk, solve
from torchcaps.native import library
from torchcaps.routing import max_min_routing, plan, why_not
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxAlgorithm, SoftmaxOptions
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import as_votes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_situations(name, dtype):
    assert_like_reference(max_min_routing, shrunk(DESCRIBED[name]()), dtype)


@pytest.mark.parametrize("detach_couplings", [False, True])
@pytest.mark.parametrize("num_iterations", [1, 2, 5])
def test_options(num_iterations, detach_couplings):
    options = {"num_iterations": num_iterations, "squash_k": 0.5, "detach_couplings": detach_couplings}
    assert_like_reference(max_min_routing, dense_case(num_parents=5, mask=True), **options)
    for competition in KINDS:
        case = amended(conv_case(num_parents=5)).given(competition=competition)
        assert_like_reference(max_min_routing, case, **options)
        assert_like_reference(max_min_routing, with_logits(case), **options)


@pytest.mark.parametrize("num_parents", [1, 2, 7, 33])
@pytest.mark.parametrize("num_children", [1, 7, 63])
def test_odd_sizes(num_children, num_parents):
    case = dense_case(batch_size=3, num_children=num_children, num_parents=num_parents)
    assert_like_reference(max_min_routing, case)
    assert_like_reference(max_min_routing, with_logits(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_parents", [1, 7, 8, 33])
@pytest.mark.parametrize("competition", KINDS)
def test_lanes_of_windows(competition, num_parents, dtype):
    case = conv_case(pose="matrix", spatial=(6, 4), stride=(2, 2), num_types=7, num_parents=num_parents)
    case.leaves["poses"] = 0.3 * randn(2, 6, 4, 7, 16)
    case.leaves["weight"] = randn(3, 2, 7, num_parents, 4, 4)
    case.leaves["bias"] = 0.3 * randn(3, 2, 7, num_parents, 16)
    assert_like_reference(max_min_routing, case.given(competition=competition), dtype)


def equal_parents(competition: str) -> Case:
    """Two pairs of parents with the same votes, which are whole numbers: every logit is shared by two, bit for bit."""
    case = conv_case(num_parents=4).given(competition=competition)
    for name in ("poses", "weight", "bias"):
        case.leaves[name].mul_(2).round_()
    for name in ("weight", "bias"):
        leaf = case.leaves[name]
        leaf.copy_(leaf.index_select(3, torch.tensor([0, 1, 1, 0])))
    return case


@pytest.mark.parametrize("competition", KINDS)
def test_at_ties_the_gradient_goes_to_the_first(competition):
    assert_like_reference(max_min_routing, equal_parents(competition), num_iterations=2)


@pytest.mark.parametrize("competition", KINDS)
def test_equal_logits_have_couplings_of_one(competition):
    case = conv_case(num_parents=3, mask=True).given(competition=competition)
    case.leaves["poses"].zero_()
    del case.leaves["bias"]
    result, gradients = solve(max_min_routing, case, torch.float32, backend="fused")
    assert result.coupling.unique().tolist() == [0.0, 1.0]  # of masked children, and of the others
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize("scale", [1e-20, 1e-13, 1e-8, 1e6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_votes_stay_finite(scale, dtype):
    for case in (dense_case(num_parents=5), *(conv_case(num_parents=5).given(competition=kind) for kind in KINDS)):
        for name in ("poses", "bias"):
            case.leaves[name] *= scale
        result, gradients = solve(max_min_routing, case, dtype, backend="fused")
        assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name.startswith(("dense", "conv", "class"))])
def test_gradients(name):
    assert gradcheck(max_min_routing, amended(GRADIENTS[name]()), backend="fused")


def test_a_leak_is_refused():
    votes = lower(conv_case().votes())._replace(activations=None)
    options = SoftmaxOptions(algorithm=SoftmaxAlgorithm.MAX_MIN.value, num_sums=2, leaky=True)
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        SOFTMAX.forward(*votes, None, None, *options, None, False)


def test_logits_of_masked_children_are_not_read():
    case = with_logits(conv_case(mask=True, num_parents=3))
    logits, mask = case.options["initial_logits"], as_votes(case.votes()).slot_mask()
    clean = max_min_routing(case.votes(), backend="fused", **case.options).capsules.poses
    dirty = torch.where(mask.unsqueeze(-1), logits, torch.nan)
    found = max_min_routing(case.votes(), backend="fused", **case.options | {"initial_logits": dirty}).capsules.poses
    assert torch.equal(clean, found)


def test_auto_takes_the_kernel():
    assert plan(max_min_routing, dense_case().votes()).chosen == "fused"
    for competition in KINDS:
        assert plan(max_min_routing, conv_case().votes(), competition=competition).chosen == "fused"
    assert "votes exist already" in why_not("fused", max_min_routing, randn(2, 5, 3, 4))
