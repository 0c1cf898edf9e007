"""Products of tiles, which tensor cores take: 16 samples or more, poses that are vectors of 8 entries or more.

The interpreter computes each of them exactly, whatever rounding is asked for; that there is one is tested beside it.
"""

from types import SimpleNamespace

import pytest
import torch

from support.cases import dense_case, randn
from support.gpu_checks import assert_right, conv1d
from support.situations import amended
from torchcaps.gpu import layer, tiles
from torchcaps.gpu.layer import Layer, product_precision
from torchcaps.routing import dynamic_routing, em_routing, max_min_routing
from torchcaps.routing.ops.votes import lower

SOFT = {"num_iterations": 2, "inverse_temperature": 0.25, "eps_var": 0.05, "beta_a": 0.3, "beta_u": -0.2}


def longer(case, inner):
    """The case with `inner` entries in every pose."""
    for name in ("poses", "weight"):
        old = case.leaves[name]
        axis = -1 if name == "poses" else -2
        shape = list(old.shape)
        shape[axis] = inner
        case.leaves[name] = randn(*shape) / inner**0.5
    return case


CASES = {
    "dense": lambda: longer(dense_case(batch_size=17, num_children=2), 9),
    "dense, shared, mask": lambda: longer(dense_case(batch_size=16, num_children=2, sharing="shared", mask=True), 8),
    "conv1d, amended": lambda: amended(longer(conv1d(batch_size=9, mask=True, num_parents=3), 16)),
    "more than a tile": lambda: longer(dense_case(batch_size=16, num_children=1, num_parents=2), 70),
}


@pytest.mark.parametrize("name", CASES)
def test_softmax(name):
    case = CASES[name]()
    assert Layer(lower(case.votes())).dots
    assert_right(dynamic_routing, case, num_iterations=2)


def test_em():
    assert_right(em_routing, CASES["dense"](), **SOFT)


def test_max_min():
    assert_right(max_min_routing, CASES["dense"](), num_iterations=2)


@pytest.fixture
def tiles_of_sixteen(monkeypatch):
    """Samples, of one parent each; slots in chunks."""
    for name, value in {"ENTRIES": 16, "WEIGHT_ENTRIES": 16, "PROGRAMS_WANTED": 8, "LARGEST_INNER": 16}.items():
        monkeypatch.setattr(tiles, name, value)


@pytest.mark.usefixtures("tiles_of_sixteen")
@pytest.mark.parametrize("name", ["dense", "conv1d, amended"])
def test_many_programs(name):
    assert_right(dynamic_routing, CASES[name](), num_iterations=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_smaller_types(dtype):
    assert_right(dynamic_routing, CASES["dense"](), dtype, num_iterations=2)


@pytest.mark.parametrize(
    "case",
    [
        lambda: longer(dense_case(batch_size=15, num_children=2), 9),
        lambda: longer(dense_case(batch_size=16, num_children=2), 7),
        lambda: dense_case(batch_size=16, num_children=2, pose="matrix"),
    ],
    ids=["few samples", "short poses", "matrices"],
)
def test_what_is_too_small(case):
    assert not Layer(lower(case().votes())).dots


def test_rounding_follows_torch(monkeypatch):
    assert product_precision(torch.float32) == "ieee"
    for name, wanted in {"high": "tf32x3", "medium": "tf32"}.items():
        monkeypatch.setattr(layer.torch, "get_float32_matmul_precision", lambda name=name: name)
        assert product_precision(torch.float32) == wanted
        assert product_precision(torch.float64) == "ieee"
        assert product_precision(torch.bfloat16) == "tf32"


def test_rounding_that_was_set_by_its_newer_name(monkeypatch):
    """torch refuses to tell the older name then."""

    def refuse():
        raise RuntimeError

    monkeypatch.setattr(layer.torch, "get_float32_matmul_precision", refuse)
    for name in ("ieee", "tf32"):
        monkeypatch.setattr(layer.torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=name))
        assert product_precision(torch.float32) == name


def test_amd_multiplies_float32_as_it_is(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(layer.torch, "get_float32_matmul_precision", lambda: "medium")
    assert {product_precision(dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)} == {"ieee"}
