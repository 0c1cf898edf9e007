"""Squash, normalise and length, above all at and near zero."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import loops
from support.cases import randn
from torchcaps.capsules import Capsules, check_capsules, length, matrix_side, normalise, squash

FUNCTIONS = {"squash": squash, "normalise": normalise, "length": length}
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def gradient(function, vector):
    vector = vector.clone().requires_grad_()
    function(vector).sum().backward()
    return vector.grad


@pytest.mark.parametrize("squash_k", [0.5, 1.0, 2])
@pytest.mark.parametrize("size", [1, 7, 63])
def test_values(size, squash_k):
    vectors = randn(5, 3, size)
    for function, loop in (
        (length, loops.norm),
        (normalise, loops.unit),
        (lambda v: squash(v, squash_k), lambda v: loops.squash(v, squash_k)),
    ):
        torch.testing.assert_close(function(vectors), torch.as_tensor(loops.each(loop, vectors.numpy())))


def test_known_values():
    vector = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert length(vector) == 5
    assert normalise(vector).tolist() == [0.6, 0.8]
    torch.testing.assert_close(squash(vector), vector / 5 * 25 / 26)
    torch.testing.assert_close(squash(vector, 0.5), vector / 5 * 25 / 25.5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_has_value_zero_and_gradient_zero(name, dtype):
    zero = torch.zeros(2, 3, dtype=dtype)
    assert (FUNCTIONS[name](zero) == 0).all()
    assert (gradient(FUNCTIONS[name], zero) == 0).all()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e4, 1e15])
def test_finite_everywhere(name, dtype, scale):
    vector = (randn(4, 5) * scale).to(dtype)
    assert FUNCTIONS[name](vector).isfinite().all()
    assert gradient(FUNCTIONS[name], vector).isfinite().all()


@pytest.mark.parametrize("scale", [1e-100, 1e-8, 1e-3])
def test_normalise_is_exact_near_zero(scale):
    vector = randn(4, 5)
    torch.testing.assert_close(normalise(scale * vector), normalise(vector), rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [1e-60, 1e-8, 1e-3])
def test_squash_near_zero_is_quadratic(scale):
    vector = scale * torch.tensor([0.6, 0.8], dtype=torch.float64)
    torch.testing.assert_close(length(squash(vector)).item(), scale**2 / (1 + scale**2), rtol=1e-12, atol=0)
    # the derivative along the vector is 2 t / (1 + t^2)^2
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    along = gradient(lambda v: squash(v) @ direction, vector) @ direction
    torch.testing.assert_close(along.item(), 2 * scale / (1 + scale**2) ** 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    assert torch.autograd.gradcheck(FUNCTIONS[name], randn(3, 4).requires_grad_())
    assert torch.autograd.gradcheck(lambda v: squash(v, 0.5), randn(3, 4).requires_grad_())


def test_the_wrong_squash_is_caught():
    """s / |s| written plainly is what gives NaN at zero."""

    def plain(vector):
        norm = vector.norm(dim=-1, keepdim=True)
        return norm**2 / (1 + norm**2) * vector / norm

    assert plain(torch.zeros(3)).isnan().all()
    assert gradient(plain, torch.zeros(3)).isnan().all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.floats(0.01, 10))
def test_squash_keeps_the_direction_and_a_length_below_one(entries, squash_k):
    vector = torch.tensor(entries, dtype=torch.float64)
    squashed = squash(vector, squash_k)
    assert length(squashed) <= 1
    torch.testing.assert_close(normalise(squashed) * length(vector), vector if length(squashed) > 0 else 0 * vector)


def test_float32_rounds_to_length_one_far_out():
    assert length(squash(torch.tensor([1e4, 0.0]))) == 1


def test_capsules():
    poses = randn(2, 4, 4, 3, 5)
    capsules = Capsules.from_poses(poses)
    torch.testing.assert_close(capsules.activations, poses.square().sum(-1).sqrt())
    flat = capsules.flatten()
    assert flat.poses.shape == (2, 48, 5)
    assert flat.activations.shape == (2, 48)
    assert torch.equal(flat.poses[1, 3 * (4 * 1 + 2) + 1], poses[1, 1, 2, 1])


@pytest.mark.parametrize("size", [1, 4, 16, 49])
def test_matrix_side(size):
    assert matrix_side(size) == math.sqrt(size)


def test_messages():
    with pytest.raises(ValueError, match="a matrix pose needs a square number of entries such as 16.*got 8"):
        matrix_side(8)
    for wrong in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="squash_k must be a positive finite number, got"):
            squash(randn(3), wrong)
    with pytest.raises(TypeError, match=r"squash_k must be a positive number, got '1' \(str\)"):
        squash(randn(3), "1")
    with pytest.raises(TypeError, match=r"poses must be floating point, got torch.int64; convert it with .float\(\)"):
        check_capsules(torch.ones(1, 2, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="poses must be a torch.Tensor, got list"):
        check_capsules([1.0])
    with pytest.raises(ValueError, match=r"poses must have 3 axes, got shape \(2, 3\)"):
        check_capsules(randn(2, 3), num_axes=3)
    with pytest.raises(ValueError, match=r"without the last axis, \(2, 3\), got \(2, 4\)"):
        check_capsules(Capsules(randn(2, 3, 5), randn(2, 4)))
