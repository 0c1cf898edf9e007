"""What holds for every capsule layer: the values, the gradients, the invariants, the start."""

from itertools import product

import numpy as np
import pytest
import torch

from support.layers import KINDS, LEARNED, POSES, ROUTINGS, SHARINGS, loop_result, make_children, make_layer, scalar
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.routing import use_backend


def assert_equals_loops(layer, kind, children, **masks):
    result = layer.route(children, mask=masks.get("mask"))
    expected = loop_result(layer, kind, children, **masks)
    np.testing.assert_allclose(result.capsules.poses.detach(), expected.poses, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.capsules.activations.detach(), expected.activations, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.coupling, expected.coupling, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_loops(kind, routing):
    assert_equals_loops(make_layer(kind, routing, bias=True), kind, make_children(kind))


@pytest.mark.parametrize("routing", ["dynamic", "entropy", "em"])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("kind", ["dense", "conv1d", "class"])
def test_every_kind_of_weight_and_pose_equals_the_loops(kind, pose, sharing, routing):
    layer = make_layer(kind, routing, pose=pose, sharing=sharing, bias=True)
    assert_equals_loops(layer, kind, make_children(kind, pose=pose))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_loop_over_other_children_differs(routing):
    """The comparison above can fail: two children exchanged are seen."""
    layer, children = make_layer("dense", routing), make_children("dense")
    exchanged = Capsules(*(part.flip(1) for part in children))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(layer(children).poses.detach(), loop_result(layer, "dense", exchanged).poses, 0.01)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_reaches_every_entry_of_every_parameter(kind, routing):
    for pose, sharing, bias in product(POSES, SHARINGS, (False, True)):
        layer = make_layer(kind, routing, pose=pose, sharing=sharing, bias=bias)
        expected = {"weight"} | ({"child_weight"} if sharing == "factorised" else set()) | ({"bias"} if bias else set())
        expected |= {f"routing.{name}" for name in LEARNED.get(routing, ())}
        assert {name for name, _ in layer.named_parameters()} == expected
        children = make_children(kind, pose=pose)
        poses = children.poses.requires_grad_()
        scalar(layer(Capsules(poses, children.activations))).backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None, (pose, sharing, bias, name)
            assert parameter.grad.isfinite().all(), (pose, sharing, bias, name)
            assert (parameter.grad != 0).all(), (pose, sharing, bias, name)
        assert poses.grad.isfinite().all()
        assert poses.grad.any()


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_examples(kind, routing):
    layer, children = make_layer(kind, routing), make_children(kind, batch_size=3)
    together = layer(children)
    for b in range(3):
        alone = layer(Capsules(*(part[b : b + 1] for part in children)))
        for part, whole in zip(alone, together):
            torch.testing.assert_close(part[0], whole[b], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_children_may_stand_in_any_order(routing):
    layer, children = make_layer("dense", routing, bias=True), make_children("dense")
    before, order = layer(children), torch.randperm(5)
    with torch.no_grad():
        layer.weight.copy_(layer.weight[order])
        layer.bias.copy_(layer.bias[order])
        for name, parameter in layer.routing.named_parameters():
            if parameter.shape[0] == 5 and name != "scale" and name != "shift":  # of the children
                parameter.copy_(parameter[order])
    after = layer(Capsules(*(part[:, order] for part in children)))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_parents_may_stand_in_any_order(kind, routing):
    layer, children = make_layer(kind, routing), make_children(kind)
    before, order = layer(children), torch.randperm(layer.num_parents)
    with torch.no_grad():
        layer.weight.copy_(layer.weight[..., order, :, :])
        for parameter in layer.routing.parameters() if routing != "attention" else ():  # that one learns per entry
            parameter.copy_(parameter[..., order])
    after = layer(children)
    torch.testing.assert_close(after.poses, before.poses[..., order, :], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after.activations, before.activations[..., order], rtol=1e-10, atol=1e-12)


def stack(shape, sharing, pose, routing):
    """Three layers and children for the first, as a model would have them."""
    images, common = torch.randn(4, 16, 14, 14), {"sharing": sharing, "pose": pose}
    sizes = [(8, 8), (8, 16), (16, 16)] if pose == "vector" else [(16, 16)] * 3
    if shape == "conv":
        children = (nn.PrimaryCaps(16, 8, 8, 3) if pose == "vector" else nn.PrimaryMatrixCaps(16, 8))(images)
        return children, [
            nn.ConvCaps2d(8, 8, *sizes[0], kernel_size=3, stride=2, routing=ROUTINGS[routing](), **common),
            nn.ConvCaps2d(8, 8, *sizes[1], kernel_size=3, routing=ROUTINGS[routing](), **common),
            nn.ClassCaps(8, 10, *sizes[2], routing=ROUTINGS[routing](), **common),
        ]
    children = nn.PrimaryCaps(16, 32, 8, 9, 2)(images) if pose == "vector" else nn.PrimaryMatrixCaps(16, 8)(images)
    counts = [children.activations[0].numel(), 32, 16, 10]
    return children, [
        nn.DenseCaps(counts[n], counts[n + 1], *sizes[n], routing=ROUTINGS[routing](), **common) for n in range(3)
    ]


STACKS = [("vector", routing, sharing) for routing, sharing in product(ROUTINGS, SHARINGS)]
STACKS.remove(("vector", "entropy", "factorised"))  # two factors of norm 1 are small whatever the start: see below
STACKS += [("matrix", "em", sharing) for sharing in SHARINGS]


@pytest.mark.parametrize(("pose", "routing", "sharing"), STACKS)
@pytest.mark.parametrize("shape", ["conv", "dense"])
def test_a_stack_of_three_layers_starts_alive(shape, pose, routing, sharing):
    children, layers = stack(shape, sharing, pose, routing)
    for layer in layers:
        children = layer(children)
        mean = children.activations.mean().item()
        assert mean > 0.004, type(layer)
        assert mean < (0.95 if routing in ("em", "vb", "heinsen") else 1), type(layer)
    sum(part.sum() for part in children).backward()
    assert all(layer.weight.grad.any() for layer in layers)


@pytest.mark.parametrize("shape", ["conv", "dense"])
def test_a_factorised_stack_with_entropy_routing_starts_alive_without_normalised_weights(shape):
    children, layers = stack(shape, "factorised", "vector", "entropy")
    for layer in layers:
        layer.normalise_weights = False
        children = layer(children)
        assert children.activations.mean() > 0.004


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_frobenius_normalisation_makes_the_size_of_weights_irrelevant(sharing, pose):
    layer = make_layer("dense", "dynamic", pose=pose, sharing=sharing, normalise_weights=True)
    plain = make_layer("dense", "dynamic", pose=pose, sharing=sharing)
    children = make_children("dense", pose=pose)
    before, plain_before = layer(children), plain(children)
    with torch.no_grad():
        for each in (layer, plain):
            each.weight[0] *= 7
    torch.testing.assert_close(layer(children), before)
    assert not torch.allclose(plain(children).poses, plain_before.poses, rtol=0.01)
    parts = layer.transformation() if sharing == "factorised" else (layer.transformation(),)
    for part in parts:
        torch.testing.assert_close(part.square().sum((-2, -1)), torch.ones(part.shape[:-2], dtype=torch.float64))


def test_layers_normalise_weights_for_entropy_routing_unless_told_otherwise():
    assert make_layer("dense", "entropy").normalise_weights
    assert not make_layer("dense", "entropy", normalise_weights=False).normalise_weights
    assert not any(make_layer("dense", routing).normalise_weights for routing in ROUTINGS if routing != "entropy")


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_the_digits_of_the_routing(kind, routing):
    layer = make_layer(kind, routing, dtype=torch.float32)
    children = Capsules(*(part.bfloat16() for part in make_children(kind, dtype=torch.float32)))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(children)
    exact = layer(Capsules(*(part.float() for part in children)))
    assert mixed.poses.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_is_refused(kind):
    layer, children = make_layer(kind), make_children(kind)
    for given in (children.poses, tuple(children)):
        sentence = (
            rf"takes Capsules\(poses, activations\), got {type(given).__name__}; of poses alone, Capsules.from_poses"
        )
        with pytest.raises(TypeError, match=sentence):
            layer(given)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_network_trains_under_autocast(routing):
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), nn.PrimaryCaps(8, 4, 8, 3, 2),
        nn.DenseCaps(4 * 4 * 4, 3, 8, 8, routing=ROUTINGS[routing]()),
    )  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        capsules = network(1000 * torch.randn(2, 1, 12, 12))
        loss = scalar(capsules)
    loss.backward()
    assert all(part.isfinite().all() for part in capsules)
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("self", "self_attention", "max_min")])
def test_initial_logits_and_trace_pass_through_a_layer(routing):
    layer, children = make_layer("dense", routing), make_children("dense")
    logits = torch.randn(2, 5, 3, dtype=torch.float64)
    result = layer.route(children, initial_logits=logits, return_trace=True)
    torch.testing.assert_close(result.trace[0].coupling, logits.softmax(-1))
    torch.testing.assert_close(result.trace[-1].coupling, result.coupling)
    assert layer.route(children).trace is None


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_change_nothing(kind, one_example_chunks):
    layer, children = make_layer(kind, "em"), make_children(kind, batch_size=3)
    outputs, gradients = [], []
    for backend in ("reference", "chunked"):
        with use_backend(backend):
            outputs.append(layer(children))
        gradients.append(torch.autograd.grad(scalar(outputs[-1]), list(layer.parameters())))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pose", POSES)
def test_a_start_without_noise(pose):
    layer = nn.DenseCaps(5, 3, 4, 4, pose=pose, routing=nn.DynamicRouting(), weight_std=0.0)
    start = torch.eye(2) if pose == "matrix" else torch.zeros(4, 4)
    assert torch.equal(layer.weight, start.expand_as(layer.weight))
    with pytest.raises(ValueError, match="weight_std must be a finite number of at least 0, got -1"):
        nn.DenseCaps(5, 3, 4, 4, pose=pose, routing=nn.DynamicRouting(), weight_std=-1.0)


SMALL = {  # (C_in + C_out) kernel D
    "full": ((5 + 3) * 4, (2 + 2) * 6 * 4, (2 + 3) * 4),
    "shared": ((1 + 3) * 4, (1 + 2) * 6 * 4, (1 + 3) * 4),
}


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("sharing", SMALL)
@pytest.mark.parametrize("number", range(3))
def test_a_small_start(pose, sharing, number):
    layer_class, arguments, geometry = [
        (nn.DenseCaps, (5, 3), {}),
        (nn.ConvCaps2d, (2, 2), {"kernel_size": (3, 2)}),
        (nn.ClassCaps, (2, 3), {}),
    ][number]
    common = {"pose": pose, "sharing": sharing, "start": "small", "routing": nn.EMRouting()}
    layer = layer_class(*arguments, 4, 4, **common, **geometry)
    bound = (3 * 2 / SMALL[sharing][number]) ** 0.5
    for _ in range(20):
        layer.reset_parameters()
        assert 0 < layer.weight.abs().max() <= bound
    draws = torch.cat([(layer.reset_parameters(), layer.weight.detach().clone().flatten())[1] for _ in range(200)])
    assert draws.mean().abs() < 0.1 * bound
    assert draws.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_starts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="start='identity' is for matrix poses"):
        nn.DenseCaps(5, 3, 4, 4, routing=nn.EMRouting(), start="identity")
    with pytest.raises(ValueError, match="start must be one of 'identity', 'small', got 'tiny'"):
        nn.DenseCaps(5, 3, 4, 4, routing=nn.EMRouting(), start="tiny")
    given = nn.DenseCaps(50, 30, 4, 4, routing=nn.EMRouting(), start="small", weight_std=0.5)
    assert given.weight.std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("routing", [nn.DynamicRouting, nn.EMRouting])
def test_couplings_are_those_of_the_routing_or_refused(routing):
    layer = nn.DenseCaps(5, 3, 4, 4, routing=routing())
    children = Capsules(torch.randn(2, 5, 4), torch.rand(2, 5))
    asked, late = layer.route(children), layer.route(children)
    before = asked.coupling.clone()
    with torch.no_grad():
        layer.weight.add_(1.0)
    assert torch.equal(asked.coupling, before)
    with pytest.raises(RuntimeError, match="have changed since this routing"):
        late.coupling  # noqa: B018
