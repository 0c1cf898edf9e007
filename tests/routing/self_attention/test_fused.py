"""Self-attention routing on the fused kernel against the reference: values, couplings, gradients."""

import pytest
import torch

from support.cases import class_case, conv_case, dense_case, randn
from support.situations import GRADIENTS, gradcheck
from support.softmax_checks import DESCRIBED, assert_like_reference, shrunk, solve
from torchcaps.native import library
from torchcaps.nn import create_routing
from torchcaps.routing import plan, self_attention_routing, why_not

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

DTYPES = [torch.float64, torch.float32]


def is_taken(case) -> bool:
    return why_not("fused", self_attention_routing, case.votes(), **case.options) is None


TAKEN = [name for name, make in DESCRIBED.items() if is_taken(make())]


def biases(case) -> list[torch.Tensor]:
    """One per parent, one per child type (or another share of the slots), one per slot."""
    votes = case.votes()
    sizes = {1, votes.weight.shape[0], votes.num_slots} | ({2} if votes.num_slots % 2 == 0 else set())
    return [0.3 * randn(size, votes.num_parents) for size in sorted(sizes)]


def test_every_kind_of_votes_is_taken():
    for kind in ("dense full", "dense shared", "dense factorised", "dense matrix", "class", "conv"):
        assert any(name.startswith(kind) for name in TAKEN), kind


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", DTYPES)
def test_situations(name, dtype):
    case = shrunk(DESCRIBED[name]())
    for bias in biases(case):
        assert_like_reference(self_attention_routing, case, dtype, bias=bias)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 63, 7), (63, 7, 63), (33, 5, 3), (1, 30, 10)])
def test_odd_sizes(sizes):
    batch_size, num_children, num_parents = sizes
    for sharing in ("full", "shared", "factorised"):
        case = shrunk(
            dense_case(batch_size=batch_size, num_children=num_children, num_parents=num_parents, sharing=sharing)
        )
        assert_like_reference(self_attention_routing, case)
        assert_like_reference(self_attention_routing, case, bias=biases(case)[-1])


@pytest.mark.parametrize("name", [name for name, make in GRADIENTS.items() if "plain" not in name and is_taken(make())])
def test_gradients(name):
    case = GRADIENTS[name]()
    assert gradcheck(self_attention_routing, case, backend="fused", bias=biases(case)[-1])


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e-8, 1e6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_votes_stay_finite(scale, dtype):
    for case in (dense_case(num_parents=5), conv_case(num_parents=5), class_case(num_parents=5)):
        for name in {"poses", "bias"} & case.leaves.keys():
            case.leaves[name] *= scale
        result, gradients = solve(self_attention_routing, case, dtype, backend="fused", bias=biases(case)[-1])
        assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"competition": "global"}, "window competition, not 'global'"),
        ({"initial_logits": True}, "no initial_logits"),
        ({"amend": True}, "no amended or partial"),
        ({"partial": 0.5}, "no amended or partial"),
    ],
)
def test_what_is_refused(options, reason):
    votes = conv_case().votes()
    if "initial_logits" in options:
        options = {"initial_logits": randn(*votes.coupling_shape)}
    assert reason in why_not("fused", self_attention_routing, votes, **options)


def test_a_changed_bias_is_noticed():
    case = dense_case()
    bias = randn(1, case.votes().num_parents)
    result = self_attention_routing(case.votes(), bias=bias, backend="fused")
    bias += 1
    with pytest.raises(RuntimeError, match="have changed"):
        result.coupling  # noqa: B018


def test_a_layer_takes_the_kernel():
    case = conv_case(num_parents=3)
    routing = create_routing("self_attention")
    routing.bind(3, case.votes().vote_size, num_owners=len(case.votes().weight))
    routing.double()
    assert plan(routing, case.votes()).chosen == "fused"
    routing(case.votes()).capsules.poses.square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in routing.parameters())
