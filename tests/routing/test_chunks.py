"""What chunks keep, and what gets gradients; that they equal the reference is in test_backend."""

import weakref

import pytest
import torch

from torchcaps.capsules import Capsules, squash
from torchcaps.routing import RoutingResult, dynamic_routing
from torchcaps.routing.backend import solve
from torchcaps.routing.problem import Algorithm, pose_problem
from torchcaps.votes import DenseVotes

pytestmark = pytest.mark.usefixtures("one_example_chunks")


def leaves():
    return torch.randn(3, 5, 4, requires_grad=True), torch.randn(5, 2, 4, 6, requires_grad=True)


def test_nothing_is_kept_after_the_backward_pass():
    poses, weight = leaves()
    doubled = 2 * poses
    result = dynamic_routing(DenseVotes(doubled, weight), backend="chunked")
    result.capsules.poses.sum().backward()
    reference = weakref.ref(doubled)
    del doubled
    assert reference() is None
    assert poses.grad.any()


def test_only_what_needs_gradients_gets_them():
    poses, weight = leaves()
    result = dynamic_routing(DenseVotes(poses.detach(), weight), backend="chunked")
    assert not result.coupling.requires_grad
    result.capsules.activations.sum().backward()
    assert weight.grad.any()
    assert poses.grad is None


def test_a_changed_input_is_noticed():
    poses, weight = leaves()
    result = dynamic_routing(DenseVotes(poses, weight), backend="chunked")
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.capsules.poses.sum().backward()


def test_an_algorithm_without_options():
    def mean(problem):
        votes = problem.votes.materialise()
        return RoutingResult(Capsules.from_poses(squash(votes.mean(1))), torch.ones(votes.shape[:3]))

    poses, weight = leaves()
    problem = pose_problem(
        Algorithm("mean", mean), DenseVotes(poses, weight), None,
        competition="window", initial_logits=None, return_trace=False,
    )  # fmt: skip
    outputs = [solve(problem, backend).capsules.poses for backend in ("reference", "chunked")]
    torch.testing.assert_close(outputs[1], outputs[0])
    gradients = [torch.autograd.grad(output.sin().sum(), (poses, weight)) for output in outputs]
    torch.testing.assert_close(gradients[1], gradients[0])
