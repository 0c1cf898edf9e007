"""What is told of the routing to the classes is what the model computes."""

import numpy as np
import pytest
import torch

from support.routed import agreeing_votes, routed_image
from torchcaps.inspection import class_routing, find_routes, remaining_descent
from torchcaps.inspection.routed import traced
from torchcaps.models import create_model
from torchcaps.nn import create_routing
from torchcaps.routing import kmeans_routing


@pytest.mark.parametrize(
    ("name", "shape"), [("capsnet-small", (1, 28, 28)), ("matrix-capsnet-small", (2, 32, 32))], ids=str
)
def test_a_routed_image_is_what_the_model_computes(name, shape):
    model = create_model(name, image_shape=shape, num_classes=3).eval()
    image = torch.rand(shape)
    routed = routed_image(model, image)
    expected = model(image[None])
    assert np.allclose(routed.activations[-1], expected.scores[0].detach().numpy(), atol=1e-5)
    assert routed.votes.shape[:2] == routed.couplings.shape[1:] == (np.prod(routed.grid), 3)
    assert np.array_equal(routed.inputs, image.numpy())


def test_centres_of_em_routing_are_its_poses():
    model = create_model("matrix-capsnet-small", image_shape=(1, 32, 32), num_classes=3)
    routed = routed_image(model, torch.rand(1, 32, 32))
    assert np.allclose(routed.centres(), routed.poses, atol=1e-4)
    assert routed.routing == "em"


def test_another_routing_on_the_same_votes():
    model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=3)
    image = torch.rand(1, 28, 28)
    own, other = routed_image(model, image), routed_image(model, image, create_routing("kmeans", num_iterations=4))
    assert np.array_equal(own.votes, other.votes)
    assert (own.routing, len(own.couplings)) == ("dynamic", 3)
    assert (other.routing, len(other.couplings)) == ("kmeans", 5)
    result = kmeans_routing(torch.from_numpy(own.votes)[None], num_iterations=4)
    assert np.allclose(other.activations[-1], result.capsules.activations[0], atol=1e-5)


def test_a_text_is_routed_too():
    torch.manual_seed(0)
    options = {"num_tokens": 40, "num_classes": 3, "noise_class": True}
    model = create_model("text-capsule-a", **options).eval()
    tokens = torch.randint(1, 40, (9,))
    routes = find_routes(model, tokens, return_trace=True)
    routed = class_routing(routes)
    assert list(routes.results) == ["branches.0.windows", "branches.0.classes"]
    assert np.allclose(routed.activations[-1, :3], model(tokens[None]).scores[0].detach(), atol=1e-5)
    assert (routed.labels, routed.grid) == (("0", "1", "2", "noise"), (7, 8))
    with pytest.raises(ValueError, match=r"grid \(height, width, types\) of an image, got \(7, 8\)"):
        _ = routed.image_grid


def test_models_and_results_that_cannot_be_shown():
    with pytest.raises(ValueError, match="cnn-small has no routing that could be shown"):
        find_routes(create_model("cnn-small", image_shape=(1, 28, 28), num_classes=3), torch.rand(1, 28, 28))
    with pytest.raises(ValueError, match="return_trace=True"):
        traced(kmeans_routing(torch.rand(1, 4, 3, 2)))


def test_centres_are_weighted_means_and_distances_lie_around_them():
    routed = agreeing_votes()
    weights = routed.couplings[1, :, 3]
    expected = (weights[:, None] * routed.votes[:, 3]).sum(0) / weights.sum()
    assert np.allclose(routed.centres()[1, 3], expected, atol=1e-6)
    assert routed.distances()[1, 5, 3] == pytest.approx(np.linalg.norm(routed.votes[5, 3] - expected), rel=1e-5)
    assert routed.strongest[0] == 2


def test_what_is_left_of_a_descent():
    assert remaining_descent([3.0, 3.0]) is None
