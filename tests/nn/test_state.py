"""What a layer is made of: state, copies, start, representation, device and dtype."""

import copy

import pytest
import torch

from support.layers import KINDS, ROUTINGS, SHARINGS, make_children, make_layer


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_state_makes_the_round_trip(routing, sharing, tmp_path):
    layer, other = (make_layer("dense", routing, sharing=sharing, bias=True) for _ in range(2))
    children = make_children("dense")
    assert not other(children).poses.equal(layer(children).poses)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    torch.testing.assert_close(other(children), layer(children), rtol=0, atol=0)


def test_the_costs_of_em_are_in_the_state():
    state = make_layer("conv2d", "em").state_dict()
    assert set(state) == {"weight", "routing.beta_a", "routing.beta_u"}


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_deep_copy_is_independent(routing):
    layer, children = make_layer("class", routing), make_children("class")
    before, twin = layer(children), copy.deepcopy(layer)
    torch.testing.assert_close(twin(children), before, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    torch.testing.assert_close(layer(children), before, rtol=0, atol=0)
    assert not twin(children).poses.equal(before.poses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_reset_draws_every_parameter_anew(kind, sharing):
    layer = make_layer(kind, "em", sharing=sharing, bias=True)
    torch.manual_seed(1)
    layer.reset_parameters()
    first = copy.deepcopy(layer.state_dict())
    assert not layer.bias.any()
    assert layer.routing.beta_a.tolist() == [0] * layer.num_parents
    assert (layer.routing.beta_u == layer.routing.beta_u[0]).all()
    layer.reset_parameters()
    assert not layer.weight.equal(first["weight"])
    torch.manual_seed(1)
    layer.reset_parameters()
    assert all(value.equal(first[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dense", "5 -> 3 capsules, 3 -> 5, pose='vector', sharing='shared', bias=True, normalise_weights=True"),
        ("conv1d", "2 -> 2 types, kernel_size=(3,), stride=(1,), 3 -> 5, pose='vector', sharing='shared', bias=True"),
        ("conv2d", "2 -> 2 types, kernel_size=(3, 2), stride=(2, 1), 3 -> 5, pose='vector', sharing='shared'"),
        ("class", "2 types -> 3 classes, 3 -> 5, pose='vector', sharing='shared'"),
    ],
)
def test_representation(kind, expected):
    layer = make_layer(kind, sharing="shared", bias=True, normalise_weights=True, options={"num_iterations": 2})
    assert layer.extra_repr().startswith(expected)
    assert "DynamicRouting(num_iterations=2)" in repr(layer)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_dtype_and_device_arguments_reach_every_parameter(kind, routing):
    layer = make_layer(kind, routing, sharing="factorised", bias=True, dtype=torch.float64)
    assert all(parameter.dtype == torch.float64 for parameter in layer.parameters())
    assert layer(make_children(kind)).poses.dtype == torch.float64
    meta = make_layer(kind, routing, sharing="factorised", bias=True, device="meta", dtype=torch.float32)
    assert all(parameter.is_meta for parameter in meta.parameters())
    filled = meta.to_empty(device="cpu")
    filled.reset_parameters()
    assert all(part.isfinite().all() for part in filled(make_children(kind, dtype=torch.float32)))


def test_layers_move_between_dtypes():
    layer, children = make_layer("dense", "em"), make_children("dense")
    exact = layer(children)
    single = layer.float()(make_children("dense", dtype=torch.float32)._make(part.float() for part in children))
    assert single.poses.dtype == torch.float32
    torch.testing.assert_close(single.poses.double(), exact.poses, rtol=1e-3, atol=1e-4)
