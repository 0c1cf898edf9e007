"""K-Means routing on the fused kernel against the reference: values, couplings and gradients."""

import pytest
import torch

from support.cases import conv_case, dense_case
from support.situations import GRADIENTS, amended, gradcheck, with_logits
from support.softmax_checks import DESCRIBED, assert_like_reference, shrunk
from torchcaps.capsules import Capsules, squash
from torchcaps.native import library
from torchcaps.routing import kmeans_routing, why_not
from torchcaps.routing.competition import KINDS
from torchcaps.votes import DenseVotes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_situations(name, metric, dtype):
    assert_like_reference(kmeans_routing, shrunk(DESCRIBED[name]()), dtype, metric=metric)


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("num_iterations", [0, 1, 4])
@pytest.mark.parametrize("inverse_temperature", [0.3, 2.0])
def test_options(metric, num_iterations, inverse_temperature):
    options = {"metric": metric, "num_iterations": num_iterations, "inverse_temperature": inverse_temperature}
    assert_like_reference(kmeans_routing, dense_case(mask=True), squash_k=0.5, **options)
    for competition in KINDS:
        case = amended(conv_case()).given(competition=competition)
        assert_like_reference(kmeans_routing, with_logits(case), **options)


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 63, 7), (63, 7, 63), (33, 5, 3)])
def test_odd_sizes(metric, sizes):
    batch_size, num_children, num_parents = sizes
    case = dense_case(batch_size=batch_size, num_children=num_children, num_parents=num_parents)
    assert_like_reference(kmeans_routing, shrunk(case), metric=metric)


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("name", [name for name in GRADIENTS if name.startswith(("dense", "conv", "class"))])
def test_gradients(name, metric):
    assert gradcheck(kmeans_routing, GRADIENTS[name](), metric=metric, backend="fused")


@pytest.mark.parametrize(("dtype", "inverse_temperature"), [(torch.float64, 10.0), (torch.float32, 1.2)])
def test_parent_with_little_mass_keeps_its_mean(dtype, inverse_temperature):
    votes_IJ = torch.tensor([[0.0, 14.0], [0.0, -7.0], [0.0, -7.0]], dtype=dtype)  # exp(-49 / T) each is left to it
    capsules = Capsules.from_poses(torch.ones(1, 3, 1, dtype=dtype))
    options = {"metric": "euclidean", "num_iterations": 1, "inverse_temperature": inverse_temperature}
    result = kmeans_routing(DenseVotes(capsules, votes_IJ[..., None, None]), **options, backend="fused")
    assert 0 < result.coupling[0, 1, 1] < (1e-200 if dtype == torch.float64 else 1e-25)
    torch.testing.assert_close(result.capsules.poses[0, 1], squash(torch.tensor([-7.0], dtype=dtype)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parent_too_far_away_gets_nothing(dtype):
    """Not even the least number there is: beside other parts as small, that times a vote of 1e5 would be much."""
    votes_IJ = torch.tensor([[0.0, 14.0], [0.0, -7.0], [0.0, -7.0]], dtype=dtype)
    capsules = Capsules.from_poses(torch.ones(1, 3, 1, dtype=dtype))
    options = {"metric": "euclidean", "num_iterations": 1, "inverse_temperature": 20.0}
    result = kmeans_routing(DenseVotes(capsules, votes_IJ[..., None, None]), **options, backend="fused")
    assert result.coupling[0, :, 1].tolist() == [0, 0, 0]
    assert result.capsules.poses[0, 1] == 0


def test_hard_assignment_is_refused():
    assert "hard" in why_not("fused", kmeans_routing, dense_case().votes(), hard=True)
