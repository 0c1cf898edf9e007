"""One sentence for each thing a caller can get wrong."""

import math

import numpy as np
import pytest
import torch

from torchcaps.checks import (
    check_choice,
    check_count,
    check_floating,
    check_like,
    check_mask,
    check_positive,
    check_shape,
)


def test_what_is_right_is_given_back():
    tensor, mask = torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    assert check_choice("routing", "em", iter(["em", "kmeans"])) == "em"
    assert check_count("epochs", 0, least=0) == 0
    assert check_positive("rate", 2) == 2.0
    assert check_floating("poses", tensor) is tensor
    assert check_shape("poses", tensor, (2, 3), "(B, I)") is tensor
    assert check_like("poses", tensor, "weights", torch.ones(1)) is tensor
    assert check_mask("mask", mask) is mask


def test_a_wrong_choice_is_told_the_nearest():
    with pytest.raises(ValueError, match="routing must be one of 'em', 'kmeans', got 'kmean'; did you mean 'kmeans'?"):
        check_choice("routing", "kmean", ("em", "kmeans"))
    with pytest.raises(ValueError, match="got None$"):  # nothing is near
        check_choice("routing", None, ("em", "kmeans"))


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, np.float32(1)])
def test_only_integers_count(wrong):
    with pytest.raises(TypeError, match="epochs must be an integer of at least 1, got"):
        check_count("epochs", wrong)


def test_a_count_has_a_least_value():
    with pytest.raises(ValueError, match="epochs must be at least 2, got 1"):
        check_count("epochs", 1, least=2)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan])
def test_a_positive_number_is_finite_and_above_zero(wrong):
    with pytest.raises(ValueError, match="rate must be a positive finite number"):
        check_positive("rate", wrong)


@pytest.mark.parametrize("wrong", [True, "1", None])
def test_a_positive_number_is_a_number(wrong):
    with pytest.raises(TypeError, match="rate must be a positive number, got"):
        check_positive("rate", wrong)


def test_tensors_of_the_wrong_kind():
    with pytest.raises(TypeError, match=r"poses must be a torch.Tensor, got list"):
        check_floating("poses", [1.0])
    with pytest.raises(TypeError, match=r"poses must be floating point, got torch.int64; convert it with .float\(\)"):
        check_floating("poses", torch.arange(3))
    with pytest.raises(ValueError, match=r"poses must have shape \(B, I\) = \(2, 4\), got \(2, 3\)"):
        check_shape("poses", torch.zeros(2, 3), (2, 4), "(B, I)")
    with pytest.raises(TypeError, match=r"mask must be a boolean tensor .*, got torch.float32; convert it"):
        check_mask("mask", torch.ones(2))
    with pytest.raises(TypeError, match="mask must be a boolean tensor .*, got list"):
        check_mask("mask", [True])


def test_tensors_that_do_not_fit_each_other():
    with pytest.raises(TypeError, match=r"poses has dtype torch.float32 but weights has torch.float64"):
        check_like("poses", torch.zeros(1), "weights", torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="poses is on meta but weights is on cpu; move one of them"):
        check_like("poses", torch.zeros(1, device="meta"), "weights", torch.zeros(1))
