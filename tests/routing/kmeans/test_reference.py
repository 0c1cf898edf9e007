"""K-Means routing against its loop-by-loop transcription, and its gradients against finite differences."""

import pytest
import torch

from support import loops
from support.cases import conv_case, randn, tensor_case
from support.situations import CHANGES, GRADIENTS, SITUATIONS, amended, assert_like_loops, gradcheck, route
from torchcaps.capsules import squash
from torchcaps.routing import kmeans_routing

pytestmark = pytest.mark.usefixtures("on_reference")

VARIANTS = {
    "dot": {},
    "dot hard": {"hard": True},
    "euclidean": {"metric": "euclidean"},
    "euclidean hard": {"metric": "euclidean", "hard": True},
}


@pytest.mark.parametrize("name", [*SITUATIONS, *CHANGES])
@pytest.mark.parametrize("variant", VARIANTS)
def test_situations(name, variant):
    case, options = (SITUATIONS | CHANGES)[name](), VARIANTS[variant]
    assert_like_loops(route(kmeans_routing, case, **options), loops.kmeans(case.field(), **options), case)


@pytest.mark.parametrize("num_iterations", [0, 1, 5])
@pytest.mark.parametrize("inverse_temperature", [0.3, 4])
@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_options(num_iterations, inverse_temperature, metric):
    case = tensor_case()
    options = {
        "num_iterations": num_iterations,
        "inverse_temperature": inverse_temperature,
        "metric": metric,
        "squash_k": 0.5,
    }
    assert_like_loops(route(kmeans_routing, case, **options), loops.kmeans(case.field(), **options), case)


def test_ties_go_to_the_first_parent():
    votes = torch.ones(1, 4, 3, 2, dtype=torch.float64)
    result = kmeans_routing(votes, hard=True, num_iterations=1)
    assert result.coupling[0].tolist() == [[1.0, 0.0, 0.0]] * 4


def test_ties_go_to_the_first_position_under_global_competition():
    case = conv_case(batch_size=1, spatial=(5,), kernel=(3,), stride=(2,), num_types=1, sharing="shared", bias=False)
    leaves = {name: torch.ones_like(leaf) for name, leaf in case.leaves.items()}
    coupling = kmeans_routing(case.votes(**leaves), hard=True, num_iterations=1, competition="global").coupling[0]
    # children 0 1 2 lie in the first window, 2 3 4 in the second: child 2 belongs to the first
    assert coupling[0].tolist() == [[1.0, 0.0]] * 3
    assert coupling[1].tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]


def test_a_parent_without_members_keeps_its_centre():
    votes = torch.ones(1, 4, 3, 2, dtype=torch.float64) * torch.tensor([[3.0], [2.0], [1.0]])
    first, last = kmeans_routing(votes, hard=True, num_iterations=1, return_trace=True).trace
    assert last.coupling[0].tolist() == [[1.0, 0.0, 0.0]] * 4
    assert torch.equal(last.poses[0, 1:], first.poses[0, 1:])
    assert last.poses[0, 0].tolist() == [12.0, 12.0]


def test_hard_couplings_are_constants_for_the_gradient():
    votes, weight = randn(2, 7, 3, 4).requires_grad_(), randn(2, 3, 4)
    result = kmeans_routing(votes, hard=True)
    (result.capsules.poses * weight).sum().backward()
    again = votes.detach().requires_grad_()
    (squash(torch.einsum("bij,bijd->bjd", result.coupling, again)) * weight).sum().backward()
    torch.testing.assert_close(votes.grad, again.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients(name, variant):
    # fewer and gentler iterations for distances: their curvature would swamp the finite differences
    gentle = {"num_iterations": 2} if "hard" in variant else {"num_iterations": 2, "inverse_temperature": 0.2}
    assert gradcheck(kmeans_routing, GRADIENTS[name](), **VARIANTS[variant], **gentle)


@pytest.mark.parametrize("name", ["plain", "conv global"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_amended(name, variant):
    assert gradcheck(kmeans_routing, amended(GRADIENTS[name]()), num_iterations=1, **VARIANTS[variant])


def test_hard_with_a_temperature_is_refused():
    with pytest.raises(ValueError, match="leave out inverse_temperature=2"):
        kmeans_routing(randn(1, 3, 2, 4), hard=True, inverse_temperature=2.0)


@pytest.mark.parametrize("option", ["leaky", "detach_couplings", "alpha", "beta_a"])
def test_options_of_other_routings_are_refused(option):
    with pytest.raises(TypeError, match=option):
        kmeans_routing(randn(1, 3, 2, 4), **{option: True})


def test_messages():
    votes = randn(1, 3, 2, 4)
    with pytest.raises(
        ValueError, match="metric must be one of 'dot', 'euclidean', got 'euclid'; did you mean 'euclidean'"
    ):
        kmeans_routing(votes, metric="euclid")
    with pytest.raises(ValueError, match="num_iterations must be at least 0, got -1"):
        kmeans_routing(votes, num_iterations=-1)
    with pytest.raises(ValueError, match="inverse_temperature must be a positive finite number, got 0"):
        kmeans_routing(votes, inverse_temperature=0)
