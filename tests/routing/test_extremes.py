"""No NaN and no infinity, in values, traces or gradients, whatever the votes, activations and masks hold."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from support.algorithms import ALL, EM, competitors, route, weighs_by_activation
from torchcaps.capsules import Capsules
from torchcaps.routing import RoutingResult, em_routing, heinsen_routing, kmeans_routing, vb_routing
from torchcaps.routing.competition import KINDS
from torchcaps.votes import ConvVotes, DenseVotes

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
every_routing = pytest.mark.parametrize("name", list(ALL))
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
# the reference with a trace; "auto" takes the kernels where they were built, which have two dtypes
ON = {
    "float32": ("reference", torch.float32),
    "float64": ("reference", torch.float64),
    "bfloat16": ("reference", torch.bfloat16),
    "auto float32": ("auto", torch.float32),
    "auto float64": ("auto", torch.float64),
}
everywhere = pytest.mark.parametrize(("backend", "dtype"), list(ON.values()), ids=list(ON))

SHAPE = (2, 7, 4, 8)
VOTES = {
    "zero": lambda: torch.zeros(SHAPE),
    **{f"{scale:g}": lambda scale=scale: scale * torch.randn(SHAPE) for scale in (1e6, 1e4, 30.0, 10.0, 1.0, 1e-8)},
    **{f"equal {scale:g}": lambda scale=scale: torch.full(SHAPE, scale) for scale in (1e6, 1e4, 1.0, 1e-8)},
    **{f"equal within {e:g}": lambda e=e: 1 + e * torch.randn(SHAPE) for e in (1e-3, 1e-5, 1e-7)},
    "equal for all parents": lambda: torch.randn(2, 7, 1, 8).expand(SHAPE),
    "equal for all children": lambda: torch.randn(2, 1, 4, 8).expand(SHAPE),
    "opposite": lambda: torch.randn(2, 1, 4, 8) * torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 0.0]).view(1, 7, 1, 1),
    "one far away": lambda: torch.cat([torch.zeros(2, 6, 4, 8), torch.full((2, 1, 4, 8), 1e6)], 1),
    "one parent far away": lambda: torch.cat([torch.randn(2, 7, 3, 8), torch.full((2, 7, 1, 8), 1e6)], 2),
    "one child": lambda: torch.randn(2, 1, 4, 8),
    "one child of 1e6": lambda: 1e6 * torch.randn(2, 1, 4, 8),
    "one parent": lambda: torch.randn(2, 7, 1, 8),
    "one of everything": lambda: torch.randn(1, 1, 1, 1),
}
ACTIVATIONS = {"ones": torch.ones, "zeros": torch.zeros, "both": lambda *shape: torch.rand(*shape).round()}


def assert_finite(result: RoutingResult, leaves: list[Tensor]) -> None:
    poses, activations = result.capsules
    assert poses.isfinite().all()
    assert activations.isfinite().all()
    assert (activations >= 0).all()
    assert (activations <= 1 + 4 * torch.finfo(activations.dtype).eps).all()  # a length is rounded
    assert result.coupling.isfinite().all()
    for step in result.trace or ():
        assert all(value.isfinite().all() for value in step)
    # a different weight for every output, so that no two gradients cancel
    loss = (poses * torch.randn_like(poses)).sum() + (activations * torch.randn_like(activations)).sum()
    for gradient in torch.autograd.grad(loss, leaves, allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@everywhere
@every_routing
def test_dense_votes(name, dtype, backend):
    for make in VOTES.values():
        for some in ACTIVATIONS.values() if weighs_by_activation(name) else (torch.ones,):
            votes = make().to(dtype).clone().requires_grad_()
            activations = some(*votes.shape[:2]).to(dtype).requires_grad_()
            result = route(name, votes, activations, backend=backend, return_trace=backend == "reference")
            assert_finite(result, [votes, activations])


@everywhere
@every_routing
def test_everything_masked(name, dtype, backend):
    votes = torch.full(SHAPE, math.nan, dtype=dtype, requires_grad=True)
    weights = torch.full(SHAPE[:2], math.nan, dtype=dtype, requires_grad=True)
    result = route(name, votes, weights, mask=torch.zeros(2, 7, dtype=torch.bool), backend=backend)
    assert_finite(result, [votes, weights])
    assert not result.capsules.poses.any()
    assert not result.coupling.any()


def feature_map(scale: float, dtype: torch.dtype, spatial=(6, 4), masked: str = "", equal: bool = False):
    """Leaves and votes; kernel (3, 2), stride (2, 1), so that no window reaches the last row."""
    poses = torch.ones(2, *spatial, 2, 4) if equal else torch.randn(2, *spatial, 2, 4)
    weight = torch.randn(3, 2, 2, 3, 4, 4)
    leaves = [
        (scale * poses).to(dtype).requires_grad_(),
        torch.rand(2, *spatial, 2).round().to(dtype).requires_grad_(),
        weight.to(dtype).requires_grad_(),
    ]
    masks = {}
    if masked == "everything":
        masks["mask"] = torch.zeros(2, *spatial, dtype=torch.bool)
    if masked == "some":
        masks["mask"] = torch.rand(2, *spatial, 2) < 0.5
        masks["window_mask"] = torch.rand(2, (spatial[0] - 3) // 2 + 1, spatial[1] - 1) < 0.5
    return leaves, ConvVotes(Capsules(*leaves[:2]), leaves[2], stride=(2, 1), **masks)


@everywhere
@pytest.mark.parametrize("competition", KINDS)
@every_routing
def test_convolutional_votes(name, competition, dtype, backend):
    maps = [(scale, {}) for scale in (0.0, 1e6, 10.0, 1e-8)]
    maps += [(scale, {"masked": "some"}) for scale in (1e6, 10.0)]
    maps += [(1.0, {"masked": "everything"}), (1e4, {"equal": True})]
    for scale, options in maps:
        leaves, votes = feature_map(scale, dtype, **options)
        trace = backend == "reference"
        result = route(name, votes, competition=competition, backend=backend, return_trace=trace)
        assert_finite(result, leaves)
        assert not competitors(result.coupling, votes, "global", 0.0)[:, 5 * 8 :].any()


@everywhere
@every_routing
def test_two_stacked_routings(name, dtype, backend):
    for scale in (0.0, 1e4, 1.0, 1e-8):
        leaves, votes = feature_map(scale, dtype)
        hidden = route(name, votes, backend=backend).capsules.flatten()
        weight = torch.randn(hidden.poses.shape[1], 3, 4, 5).to(dtype).requires_grad_()
        assert_finite(route(name, DenseVotes(hidden, weight), backend=backend), [*leaves, weight])


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("batch_size", [0, 1])
@every_routing
def test_batches_of_none_and_one(name, batch_size, backend):
    votes = torch.randn(batch_size, 7, 4, 8, requires_grad=True)
    weights = torch.rand(batch_size, 7, requires_grad=True)
    result = route(name, votes, weights, backend=backend, return_trace=backend == "reference")
    assert_finite(result, [votes, weights])
    assert result.capsules.poses.shape == (batch_size, 4, 8)
    assert result.capsules.activations.shape == (batch_size, 4)
    assert result.coupling.shape == (batch_size, 7, 4)
    poses = torch.randn(batch_size, 6, 4, 2, 4, requires_grad=True)
    children = Capsules(poses, torch.rand(batch_size, 6, 4, 2))
    for competition in KINDS:
        described = ConvVotes(children, torch.randn(3, 2, 2, 3, 4, 5), stride=(2, 1))
        result = route(name, described, competition=competition, backend=backend)
        assert_finite(result, [poses])
        assert result.capsules.poses.shape == (batch_size, 2, 3, 3, 5)
        assert result.coupling.shape == (batch_size, 2, 3, 12, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_votes_give_zero_capsules(dtype):
    """Zero in, zero out, with zero gradients where the length has a kink."""
    for name in ALL:
        votes = torch.zeros(SHAPE, dtype=dtype, requires_grad=True)
        result = route(name, votes, torch.ones(SHAPE[:2], dtype=dtype))
        assert not result.capsules.poses.any()
        if name not in EM:  # there zero votes agree
            assert not result.capsules.activations.any()
            result.capsules.activations.sum().backward()
            assert not votes.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_a_euclidean_centre_whose_mass_underflows(dtype, backend):
    """The votes for the second parent lie so far from their mean that its couplings are subnormal numbers, or zero."""
    largest = -math.log(torch.finfo(dtype).tiny)
    sides = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], dtype=dtype).view(1, 4, 2, 1)
    for distance in torch.linspace(0.5 * largest, 1.3 * largest, 60).tolist():
        votes = (math.sqrt(distance) * sides + 0.01 * torch.randn(1, 4, 2, 1, dtype=dtype)).requires_grad_()
        assert_finite(kmeans_routing(votes, metric="euclidean", backend=backend), [votes])


@every_dtype
def test_huge_and_tiny_votes_still_route(dtype):
    """Finite is not enough: the parent whose votes agree is the more active one at every scale."""
    good = torch.ones(1, 6, 1, 4)
    bad = good * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]).view(1, 6, 1, 1)
    for name in ("dynamic", "kmeans", "entropy", "attention", "self_attention"):
        for scale in (1e-8, 1.0, 1e4, 1e6):
            capsules = route(name, (scale * torch.cat([good, bad], 2)).to(dtype)).capsules
            assert (capsules.activations[:, 0] > capsules.activations[:, 1]).all()


SURE = {  # routings with logits of activations, and the beta that makes parents nearly active
    "em": (em_routing, "beta_a", {"beta_u": 0.0, "lambda_schedule": 1.0}),
    "vb": (vb_routing, "beta_a", {"beta_u": 0.0}),
    "heinsen": (heinsen_routing, "beta_use", {"beta_ignore": 0.0}),
}


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("name", SURE)
def test_gradients_of_nearly_active_parents_have_their_digits(name, backend):
    """A sigmoid of x changes by sigmoid(x) sigmoid(-x); a (1 - a) is rounding where a is 1 - 1e-12."""
    routing, learned, options = SURE[name]
    beta = torch.tensor(30.0, dtype=torch.float64, requires_grad=True)
    votes, ones = torch.randn(SHAPE, dtype=torch.float64), torch.ones(SHAPE[:2], dtype=torch.float64)
    result = routing(votes, ones, backend=backend, **{learned: beta}, **options)
    logits = result.logits
    assert (logits > 20).all()
    slope = (logits.sigmoid() * (-logits).sigmoid()).detach()
    (found,) = torch.autograd.grad(result.capsules.activations.sum(), beta, retain_graph=True)
    (exact,) = torch.autograd.grad((slope * logits).sum(), beta)
    assert_close(found, exact, rtol=1e-12, atol=0)
