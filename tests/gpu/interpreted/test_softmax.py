"""The softmax routings of GPUs against the reference in float64: every kind of votes, every option."""

import pytest
import torch

from support.cases import dense_case
from support.gpu_checks import CASES, CHANGES, assert_right, conv1d
from support.situations import amended, partially, with_logits
from torchcaps.capsules import Capsules
from torchcaps.routing import dynamic_routing, entropy_routing, kmeans_routing, max_min_routing, uniform_routing
from torchcaps.votes import DenseVotes

OTHERS = {
    "kmeans": (kmeans_routing, {"inverse_temperature": 2.0, "num_iterations": 2}),
    "kmeans euclidean": (kmeans_routing, {"metric": "euclidean", "inverse_temperature": 0.3, "num_iterations": 2}),
    "entropy": (entropy_routing, {"alpha": (0.8, 0.5), "num_iterations": 2}),
    "uniform": (uniform_routing, {"leaky": True}),
    "max-min": (max_min_routing, {"num_iterations": 3}),
}


@pytest.mark.parametrize("name", CASES | CHANGES)
def test_every_kind_of_votes(name):
    assert_right(dynamic_routing, (CASES | CHANGES)[name](), num_iterations=3 if "conv1d" in name else 2)


@pytest.mark.parametrize("kind", ["dense", "window", "global", "position"])
@pytest.mark.parametrize("name", OTHERS)
def test_every_routing(name, kind):
    routing, options = OTHERS[name]
    if kind == "dense":
        case = with_logits(partially(amended(dense_case(num_children=3, num_parents=4))))
    else:
        case = conv1d(mask=True, window_mask=True).given(competition=kind)
    assert_right(routing, case, **options)


@pytest.mark.parametrize("kind", ["dense", "window", "global", "position"])
def test_extremes_of_max_min(kind):
    """Logits to start from, activations, and logits of which some are equal: the first parent has the gradient."""
    case = dense_case(num_children=3) if kind == "dense" else conv1d(window_mask=True, num_parents=3)
    case = amended(with_logits(case).given(**({} if kind == "dense" else {"competition": kind})))
    case.options["initial_logits"].round_()
    assert_right(max_min_routing, case, num_iterations=2)


@pytest.mark.parametrize("options", [{"leaky": True}, {"detach_couplings": True}, {"squash_k": 0.5}], ids=str)
@pytest.mark.parametrize("kind", ["window", "position"])
def test_options_of_dynamic_routing(options, kind):
    case = with_logits(conv1d(window_mask=True)).given(competition=kind)
    assert_right(dynamic_routing, amended(case), num_iterations=2, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dynamic", *OTHERS])
def test_smaller_types(name, dtype):
    routing, options = ({"dynamic": (dynamic_routing, {"num_iterations": 2})} | OTHERS)[name]
    assert_right(routing, dense_case(num_children=3, mask=True), dtype, **options)


@pytest.mark.parametrize("scale", [0.0, 1e-10, 1e3])
@pytest.mark.parametrize("name", ["dynamic", "kmeans", "kmeans euclidean", "entropy", "max-min"])
def test_everything_is_finite(name, scale):
    """Votes up to 1e6, children without activation, an example without children, padding that holds anything."""
    routing, options = ({"dynamic": (dynamic_routing, {"num_iterations": 2})} | OTHERS)[name]
    poses, weight = (scale * torch.randn(2, 3, 2)), (scale * torch.randn(3, 2, 2, 3))
    mask = torch.tensor([[False] * 3, [True, True, False]])
    poses[1, 2] = torch.nan
    activations = torch.tensor([[0.5] * 3, [0.0, 1.0, 0.3]])
    leaves = [leaf.requires_grad_() for leaf in (poses, weight, activations)]
    votes = DenseVotes(Capsules(poses, activations), weight, mask=mask)
    result = routing(votes, amend=True, backend="triton", **options)
    gradients = torch.autograd.grad(result.capsules.poses.sum(), leaves)
    for tensor in (*result.capsules, result.coupling, *gradients):
        assert tensor.isfinite().all()
    assert not result.capsules.poses[0].any()
    assert not gradients[0][0].any()
    assert not gradients[0][1, 2].any()
