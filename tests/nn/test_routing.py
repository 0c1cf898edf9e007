"""Routing modules: options, ownership, what EM learns, names."""

import sys
import types

import pytest
import torch

from support.layers import ROUTINGS, make_children, make_layer
from torchcaps import nn
from torchcaps.routing import dynamic_routing, em_routing, entropy_routing, kmeans_routing, uniform_routing
from torchcaps.schedules import routing_lambda

FUNCTIONS = {
    "dynamic": (dynamic_routing, {"num_iterations": 2, "squash_k": 0.5, "leaky": True}),
    "uniform": (uniform_routing, {"squash_k": 0.5}),
    "kmeans": (kmeans_routing, {"num_iterations": 2, "metric": "euclidean", "inverse_temperature": 2.0}),
    "entropy": (entropy_routing, {"num_iterations": 2, "alpha": (0.3, 0.1)}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_module_is_its_function_with_options_fixed(name):
    function, options = FUNCTIONS[name]
    votes, mask = torch.randn(2, 6, 3, 4), torch.rand(2, 6) < 0.7
    result = nn.create_routing(name, **options)(votes, mask=mask, return_trace=True)
    expected = function(votes, mask=mask, return_trace=True, **options)
    torch.testing.assert_close(result.capsules, expected.capsules, rtol=0, atol=0)
    torch.testing.assert_close(result.coupling, expected.coupling, rtol=0, atol=0)
    assert len(result.trace) == len(expected.trace)
    assert not result.capsules.poses.equal(function(votes).capsules.poses)  # the options matter


WRONG = {
    "dynamic": [
        ({"num_iterations": 0}, "num_iterations must be at least 1, got 0"),
        ({"squash_k": -1.0}, "squash_k must be a positive finite number"),
        ({"partial": 1.5}, "partial must be the probability"),
        ({"partial": torch.tensor([False, False])}, "partial must let at least one parent take part"),
        ({"competition": "windows"}, "competition must be one of .* did you mean 'window'"),
        ({"backend": "fusd", "amend": True}, "backend must be one of .* did you mean 'fused'"),
    ],
    "uniform": [({"squash_k": 0.0}, "squash_k must be a positive finite number")],
    "kmeans": [
        ({"num_iterations": -1}, "num_iterations must be at least 0, got -1"),
        ({"metric": "cosine"}, "metric must be one of"),
        ({"hard": True, "inverse_temperature": 2.0}, "hard assignment is the limit"),
    ],
    "entropy": [({"alpha": (0.1, 0.2)}, "alpha needs one number for each of the 3 iterations, got 2")],
    "em": [
        ({"num_iterations": 0}, "num_iterations must be at least 1, got 0"),
        ({"lambda_schedule": [0.1]}, "lambda_schedule needs one number for each of the 3 iterations, got 1"),
        ({"cost_scale": "mas"}, "cost_scale must be one of .* did you mean 'mass'"),
        ({"activation": "mdll"}, "activation must be one of"),
        ({"damping": 1.0}, "damping must be a number in"),
    ],
}


@pytest.mark.parametrize(("name", "options", "message"), [(name, *case) for name in WRONG for case in WRONG[name]])
def test_wrong_options_are_refused_when_a_module_is_made(name, options, message):
    with pytest.raises(ValueError, match=message):
        nn.create_routing(name, **options)


@pytest.mark.parametrize(
    "options",
    [{"partial": 0.5}, {"partial": torch.tensor([True, False, True])}, {"amend": True}, {"backend": "fused"}],
    ids=str,
)
def test_right_options_are_taken_and_nothing_is_drawn_for_it(options):
    torch.manual_seed(3)
    nn.DynamicRouting(**options)
    drawn = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(4))


def test_a_function_of_ones_own_is_not_called_when_its_module_is_made():
    class Mean(nn.FunctionRouting):
        function = staticmethod(lambda votes, *, power=1, **call: votes.no_such_thing)

    assert Mean(power=2).options == {"power": 2}


def test_options_are_checked_whatever_the_default_type():
    torch.set_default_dtype(torch.float16)
    try:
        nn.EMRouting()
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("cost_scale", "kappa"), [("mass", 100), ("paper", 1)])
@pytest.mark.parametrize("num_iterations", [1, 3])
def test_em_stores_beta_a_in_logit_units(num_iterations, cost_scale, kappa):
    routing = nn.EMRouting(num_iterations=num_iterations, cost_scale=cost_scale)
    routing.bind(3, 4, dtype=torch.float64)
    with torch.no_grad():
        routing.beta_a.copy_(torch.tensor([0.5, -1.0, 2.0]))
    votes, activations = torch.randn(2, 6, 3, 4).double(), torch.rand(2, 6).double()
    result = routing(votes, activations=activations)
    scale = routing_lambda(num_iterations - 1) * kappa
    expected = em_routing(
        votes, activations, beta_a=routing.beta_a / scale, beta_u=routing.beta_u,
        num_iterations=num_iterations, cost_scale=cost_scale,
    )  # fmt: skip
    torch.testing.assert_close(result.capsules, expected.capsules)


def test_one_unit_of_beta_a_is_one_unit_of_the_logit_of_the_activation():
    routing = nn.EMRouting(num_iterations=1)
    routing.bind(3, 4, dtype=torch.float64)
    votes, activations = torch.randn(2, 6, 3, 4).double(), torch.rand(2, 6).double()
    before = routing(votes, activations=activations).capsules.activations
    with torch.no_grad():
        routing.beta_a += torch.tensor([1.0, -2.0, 0.5])
    after = routing(votes, activations=activations).capsules.activations
    torch.testing.assert_close(after.logit() - before.logit(), torch.tensor([[1.0, -2.0, 0.5]] * 2).double())


def test_em_learns_one_beta_per_parent_type_or_one_for_all():
    assert make_layer("conv2d", "em").routing.beta_a.shape == (2,)
    shared = make_layer("dense", "em", options={"shared_betas": True}).routing
    assert shared.beta_a.shape == shared.beta_u.shape == ()
    assert "shared_betas=True" in repr(shared)
    assert not list(make_layer("dense", "em", options={"activation": "mixing"}).routing.parameters())


@pytest.mark.parametrize("activation", ["mdl", "entropy", "mixing"])
def test_every_activation_of_em_works_in_a_layer(activation):
    layer = make_layer("conv2d", "em", options={"activation": activation})
    activations = layer(make_children("conv2d")).activations
    activations.sum().backward()
    assert ((activations > 0) & (activations < 1)).all()
    if activation == "mixing":
        torch.testing.assert_close(activations.flatten(1).sum(1), torch.ones(2).double())


def test_em_without_a_layer_says_what_to_do():
    with pytest.raises(ValueError, match=r"give it to a layer, or call bind\(num_parents, vote_size\)"):
        nn.EMRouting()(torch.randn(2, 6, 3, 4), activations=torch.rand(2, 6))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_one_instance_in_two_layers_is_refused(routing):
    instance = ROUTINGS[routing]()
    nn.DenseCaps(5, 3, 4, 4, routing=instance)
    with pytest.raises(ValueError, match=f"this {type(instance).__name__} already belongs to a layer; give every"):
        nn.DenseCaps(3, 2, 4, 4, routing=instance)


def test_unknown_options_are_refused_with_a_hint():
    with pytest.raises(TypeError, match="DynamicRouting has no option 'num_iteration'; did you mean 'num_iterations'"):
        nn.DynamicRouting(num_iteration=2)
    with pytest.raises(TypeError, match="UniformRouting has no option 'xyz'; it has squash_k, leaky"):
        nn.UniformRouting(xyz=1)
    with pytest.raises(TypeError, match="has no option 'mask'"):  # belongs to a call
        nn.KMeansRouting(mask=None)


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "entropy", "uniform"])
def test_partial_normalisation_is_for_training_only(routing):
    layer = make_layer("dense", routing, options={"partial": 0.4})
    children = make_children("dense")
    drawn = {tuple((layer.route(children).coupling != 0).any(1).all(0).tolist()) for _ in range(30)}
    assert len(drawn) > 3
    assert all(any(parents) for parents in drawn)
    coupling = layer.eval().route(children).coupling
    assert (coupling != 0).all()
    layer.routing.options = {}
    assert coupling.equal(layer.route(children).coupling)


def test_routings_by_name():
    for name, kind in ROUTINGS.items():
        assert type(nn.create_routing(name)) is kind
    assert repr(nn.create_routing("kmeans", num_iterations=2)) == "KMeansRouting(num_iterations=2)"
    with pytest.raises(ValueError, match="routing must be one of .* got 'kmean'; did you mean 'kmeans'"):
        nn.create_routing("kmean")


def test_routings_by_import_path(monkeypatch):
    module = types.ModuleType("some_users_module")
    module.Mine = type("Mine", (nn.DynamicRouting,), {})
    module.Other = type("Other", (), {})
    monkeypatch.setitem(sys.modules, "some_users_module", module)
    routing = nn.create_routing("some_users_module:Mine", num_iterations=2)
    assert type(routing) is module.Mine
    assert routing.options["num_iterations"] == 2
    with pytest.raises(ValueError, match="no routing at 'some_users_module:Missing'.*expected 'package.module:Class'"):
        nn.create_routing("some_users_module:Missing")
    with pytest.raises(ValueError, match="no routing at 'no_such_module:Mine'"):
        nn.create_routing("no_such_module:Mine")
    with pytest.raises(TypeError, match="'some_users_module:Other' must be a subclass of torchcaps.nn.Routing"):
        nn.create_routing("some_users_module:Other")


@pytest.mark.parametrize("wrong", [None, nn.DynamicRouting, nn.DynamicRouting()])
def test_models_take_names(wrong):
    with pytest.raises(TypeError, match="a model takes a routing by its name"):
        nn.create_routing(wrong)
