"""Dynamic routing on the fused kernel against the reference: values, couplings and gradients."""

import pytest
import torch

from support.cases import class_case, conv_case, dense_case, randn
from support.situations import GRADIENTS, amended, gradcheck, with_logits
from support.softmax_checks import DESCRIBED, assert_like_reference, shrunk
from torchcaps.native import library
from torchcaps.routing import dynamic_routing, plan, why_not
from torchcaps.routing.competition import KINDS
from torchcaps.votes import as_votes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_situations(name, leaky, dtype):
    assert_like_reference(dynamic_routing, shrunk(DESCRIBED[name]()), dtype, leaky=leaky)


@pytest.mark.parametrize("detach_couplings", [False, True])
@pytest.mark.parametrize("num_iterations", [1, 2, 5])
@pytest.mark.parametrize("squash_k", [0.5, 3])
def test_options(num_iterations, squash_k, detach_couplings):
    options = {"num_iterations": num_iterations, "squash_k": squash_k, "detach_couplings": detach_couplings}
    assert_like_reference(dynamic_routing, dense_case(mask=True), **options)
    for competition in KINDS:
        case = amended(conv_case()).given(competition=competition)
        assert_like_reference(dynamic_routing, case, **options)
        assert_like_reference(dynamic_routing, with_logits(case), leaky=True, **options)


@pytest.mark.parametrize("num_parents", [1, 7, 63])
@pytest.mark.parametrize("num_children", [1, 7, 63])
@pytest.mark.parametrize("batch_size", [1, 7, 63])
def test_odd_sizes(batch_size, num_children, num_parents):
    case = dense_case(batch_size=batch_size, num_children=num_children, num_parents=num_parents)
    assert_like_reference(dynamic_routing, case)
    assert_like_reference(dynamic_routing, with_logits(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_parents", [1, 7, 8, 63])
@pytest.mark.parametrize("competition", KINDS[1:])
def test_lanes_of_windows(competition, num_parents, dtype):
    """More parents than a register has, matrices of the size that the compiler knows, and children that nobody sees."""
    case = conv_case(pose="matrix", spatial=(6, 4), stride=(2, 2), num_types=7, num_parents=num_parents)
    case.leaves["poses"] = 0.3 * randn(2, 6, 4, 7, 16)
    case.leaves["weight"] = randn(3, 2, 7, num_parents, 4, 4)
    case.leaves["bias"] = 0.3 * randn(3, 2, 7, num_parents, 16)
    for given in (case, with_logits(case)):
        assert_like_reference(dynamic_routing, given.given(competition=competition), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("inner", "outer"), [(8, 16), (16, 16), (8, 8), (1, 1), (7, 9), (70, 5), (3, 17)])
def test_pose_and_vote_sizes(inner, outer, bias, dtype):
    case = dense_case(batch_size=21, num_children=11, num_parents=5, bias=bias)
    case.leaves["poses"] = randn(21, 11, inner)
    case.leaves["weight"] = randn(11, 5, inner, outer) / inner**0.5
    if bias:
        case.leaves["bias"] = randn(11, 5, outer)
    assert_like_reference(dynamic_routing, shrunk(case), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", [1, 3, 4, 5])
def test_matrix_sides(side, dtype):
    case = class_case(pose="matrix", num_parents=5)
    case.leaves["poses"] = randn(2, 2, 3, 2, side * side)
    case.leaves["weight"] = 0.3 * randn(2, 5, side, side)
    del case.leaves["bias"]
    case = case if side > 1 else class_case(pose="matrix", num_parents=5)
    assert_like_reference(dynamic_routing, case, dtype)


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name.startswith(("dense", "conv", "class"))])
def test_gradients(name):
    case = GRADIENTS[name]()
    assert gradcheck(dynamic_routing, case, backend="fused")
    assert gradcheck(dynamic_routing, amended(case), leaky=True, backend="fused")


def test_auto_takes_the_kernel():
    assert plan(dynamic_routing, dense_case().votes()).chosen == "fused"
    for competition in KINDS:
        case = with_logits(conv_case(sharing="factorised", bias=False)).given(competition=competition)
        assert plan(dynamic_routing, case.votes(), **case.options).chosen == "fused"


@pytest.mark.parametrize("competition", ["window", "global"])
def test_logits_of_minus_infinity_forbid_a_parent(competition):
    case = with_logits(conv_case(num_parents=3)).given(competition=competition)
    case.options["initial_logits"][..., 1] = -torch.inf
    assert_like_reference(dynamic_routing, case)
    assert not dynamic_routing(case.votes(), backend="fused", **case.options).capsules.poses[..., 1, :].any()


def test_logits_of_masked_children_are_not_read():
    for make in (dense_case, conv_case):
        case = with_logits(make(mask=True))
        logits, mask = case.options["initial_logits"], as_votes(case.votes()).slot_mask()
        clean = dynamic_routing(case.votes(), backend="fused", **case.options).capsules.poses
        dirty = torch.where(mask.unsqueeze(-1), logits, torch.nan).requires_grad_()
        found = dynamic_routing(
            case.votes(), backend="fused", **case.options | {"initial_logits": dirty}
        ).capsules.poses
        assert torch.equal(clean, found)
        gradient = torch.autograd.grad(found.sum(), dirty)[0]
        assert gradient[mask].isfinite().all()
        assert not gradient[~mask].any()


@pytest.mark.parametrize(
    ("votes", "options", "reason"),
    [
        (lambda: randn(2, 5, 3, 4), {}, "exist already"),
        (lambda: dense_case().votes(poses=torch.empty(0, 5, 3, dtype=torch.float64), activations=None), {}, "nothing"),
    ],
)
def test_refusals(votes, options, reason):
    assert reason in why_not("fused", dynamic_routing, votes(), **options)
    with pytest.raises(ValueError, match=reason):
        dynamic_routing(votes(), backend="fused", **options)


def test_half_precision_is_left_to_the_others():
    case = dense_case(bias=False)
    votes = case.votes(**{name: leaf.bfloat16() for name, leaf in case.leaves.items()})
    assert "bfloat16" in why_not("fused", dynamic_routing, votes)
