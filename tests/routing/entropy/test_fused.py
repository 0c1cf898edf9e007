"""Entropy routing on the fused kernel against the reference: values, couplings and gradients."""

import pytest
import torch

from support.cases import conv_case, dense_case
from support.situations import GRADIENTS, amended, gradcheck, with_logits
from support.softmax_checks import DESCRIBED, assert_like_reference, shrunk, solve
from torchcaps.native import library
from torchcaps.routing import entropy_routing
from torchcaps.routing.competition import KINDS

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_situations(name, dtype):
    assert_like_reference(entropy_routing, shrunk(DESCRIBED[name]()), dtype, alpha=0.5)


@pytest.mark.parametrize("alpha", [[0.3], [0.5, 0.2, 0.1], [1.0, 2.0, 0.7, 0.4, 0.3]])
def test_options(alpha):
    options = {"alpha": alpha, "num_iterations": len(alpha)}
    assert_like_reference(entropy_routing, dense_case(mask=True), **options)
    for competition in KINDS:
        case = amended(conv_case()).given(competition=competition)
        assert_like_reference(entropy_routing, with_logits(case), **options)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 63, 7), (63, 7, 63), (33, 5, 3)])
def test_odd_sizes(sizes):
    batch_size, num_children, num_parents = sizes
    case = dense_case(batch_size=batch_size, num_children=num_children, num_parents=num_parents)
    assert_like_reference(entropy_routing, shrunk(case))


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name.startswith(("dense", "conv", "class"))])
def test_gradients(name):
    assert gradcheck(entropy_routing, GRADIENTS[name](), alpha=0.5, backend="fused")


def test_parents_of_equal_length_share_the_gradient_of_the_largest():
    case = dense_case(num_parents=4)
    for name in ("weight", "bias"):
        case.leaves[name][:] = case.leaves[name][:, :1]
    assert_like_reference(entropy_routing, case)
    _, gradients = solve(entropy_routing, case, torch.float64, backend="fused")
    assert gradients["weight"].abs().max() > 1e-3
