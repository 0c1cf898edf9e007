"""Uniform routing on the fused kernel: dynamic routing with one iteration."""

import pytest
import torch

from support.softmax_checks import DESCRIBED, assert_like_reference
from torchcaps.native import library
from torchcaps.routing import uniform_routing

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("leaky", [False, True], ids=["plain", "leaky"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_situations(name, leaky, dtype):
    assert_like_reference(uniform_routing, DESCRIBED[name](), dtype, leaky=leaky)
