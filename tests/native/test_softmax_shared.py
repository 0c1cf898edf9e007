"""Layers whose children share their transformations: no vote is formed, and nothing else is different."""

import pytest
import torch

from support.cases import Case, conv_case, dense_case
from support.situations import amended, partially
from support.softmax_checks import assert_like_reference, shrunk
from torchcaps.native import library
from torchcaps.routing import dynamic_routing, entropy_routing, kmeans_routing

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

ROUTINGS = {
    "dynamic": (dynamic_routing, {}),
    "dynamic, one iteration": (dynamic_routing, {"num_iterations": 1}),
    "dynamic, detached": (dynamic_routing, {"detach_couplings": True}),
    "dynamic, leaky": (dynamic_routing, {"leaky": True, "num_iterations": 4}),
    "kmeans": (kmeans_routing, {"inverse_temperature": 2.0}),
    "entropy": (entropy_routing, {"alpha": (0.3, 0.2, 0.1)}),
}


def dense(**options) -> Case:
    """Several tiles of samples, the last one not full; an odd number of children."""
    options = {"batch_size": 77, "num_children": 11, "num_parents": 5} | options
    return shrunk(dense_case(sharing="shared", bias=False, **options))


def conv(**options) -> Case:
    """Windows of 12 slots that overlap; the last row is seen by none."""
    return shrunk(conv_case(batch_size=13, num_parents=7, sharing="shared", bias=False, **options))


CASES = {
    "dense": dense,
    "dense, mask": lambda: dense(mask=True),
    "dense, amended": lambda: amended(dense(mask=True)),
    "conv": conv,
    "conv, masks": lambda: conv(mask=True, window_mask=True),
    "conv, amended, partial": lambda: partially(amended(conv(mask=True))),
}


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("name", ROUTINGS)
def test_like_the_reference(name, make, dtype):
    routing, options = ROUTINGS[name]
    assert_like_reference(routing, CASES[make](), dtype, **options)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads(num_threads):
    torch.set_num_threads(num_threads)
    assert_like_reference(dynamic_routing, dense(batch_size=150, mask=True), torch.float32)
    assert_like_reference(dynamic_routing, conv(window_mask=True), torch.float64)
