"""Squash: values of the formula, the limits, and the zero vector."""

import math

import pytest
import torch

from torchcaps import nn
from torchcaps.capsules import Capsules, length, normalise


@pytest.mark.parametrize("squash_k", [0.5, 1.0, 3.0])
def test_formula(squash_k):
    vector = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)  # of length 3
    expected = [9 / (squash_k + 9) * entry / 3 for entry in (1, -2, 2)]
    torch.testing.assert_close(nn.squash(vector, squash_k), torch.tensor(expected, dtype=torch.float64))
    assert nn.Squash(squash_k)(vector).equal(nn.squash(vector, squash_k))


def test_a_vector_of_length_root_k_becomes_half_as_long():
    assert nn.squash(torch.tensor([math.sqrt(0.5), 0.0]), 0.5).norm().item() == pytest.approx(0.5)


@pytest.mark.parametrize("function", [nn.squash, nn.squash_exponentially, normalise])
def test_the_zero_vector_is_zero_with_zero_gradient(function):
    poses = torch.zeros(2, 3, requires_grad=True)
    out = function(poses)
    out.sum().backward()
    assert out.equal(torch.zeros(2, 3))
    assert poses.grad.equal(torch.zeros(2, 3))


def test_the_activation_of_a_squashed_zero_vector_has_zero_gradient():
    poses = torch.zeros(2, 3, requires_grad=True)
    Capsules.from_poses(nn.squash(poses)).activations.sum().backward()
    assert poses.grad.equal(torch.zeros(2, 3))


def test_the_exponential_squash_by_its_formula():
    vector = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)  # of length 3
    expected = [(1 - math.exp(-3)) * entry / 3 for entry in (1, -2, 2)]
    torch.testing.assert_close(nn.squash_exponentially(vector), torch.tensor(expected, dtype=torch.float64))
    tiny = torch.tensor([3e-9, 4e-9])
    torch.testing.assert_close(nn.squash_exponentially(tiny), tiny)  # 1 - exp(-|s|) would round to 0


@pytest.mark.parametrize("function", [nn.squash, nn.squash_exponentially])
def test_lengths_stay_in_the_unit_interval_and_keep_their_order(function):
    scale = torch.logspace(-12, 12, 49)
    poses = (scale[:, None] * torch.tensor([0.6, 0.8])).requires_grad_()
    lengths = length(function(poses))
    lengths.sum().backward()
    assert ((lengths >= 0) & (lengths <= 1 + 1e-6)).all()
    assert (lengths.diff() >= -1e-6).all()
    assert (lengths[:30].diff() >= 0).all()  # where nothing is rounded yet
    assert poses.grad.isfinite().all()


def test_gradient():
    poses = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(nn.squash, (poses, 0.5))
    torch.autograd.gradcheck(nn.squash_exponentially, (poses,))


def test_options_are_checked_and_shown():
    assert "squash_k=0.5" in repr(nn.Squash(0.5))
    for wrong in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="squash_k must be a positive finite number"):
            nn.Squash(wrong)
    with pytest.raises(TypeError, match="squash_k must be a positive number"):
        nn.Squash("1")
