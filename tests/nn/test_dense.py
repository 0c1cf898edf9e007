"""Dense layers: sizes, any number of children, masks."""

import math

import pytest
import torch

from support.layers import POSES, ROUTINGS, make_children, make_layer
from torchcaps import nn
from torchcaps.capsules import Capsules


def test_capsnet_has_the_published_number_of_weights():
    layer = nn.DigitCaps(1152, 10, 8, 16, routing=nn.DynamicRouting())
    assert sum(parameter.numel() for parameter in layer.parameters()) == 1_474_560
    assert layer.weight.shape == (1152, 10, 8, 16)


@pytest.mark.parametrize(
    ("sharing", "pose", "expected"),
    [
        ("full", "vector", {"weight": (5, 3, 3, 5), "bias": (5, 3, 5)}),
        ("shared", "vector", {"weight": (3, 3, 5), "bias": (3, 5)}),
        ("factorised", "vector", {"weight": (3, 3, 5), "child_weight": (5, 3, 3), "bias": (3, 5)}),
        ("full", "matrix", {"weight": (5, 3, 2, 2), "bias": (5, 3, 4)}),
        ("shared", "matrix", {"weight": (3, 2, 2), "bias": (3, 4)}),
        ("factorised", "matrix", {"weight": (3, 2, 2), "child_weight": (5, 2, 2), "bias": (3, 4)}),
    ],
)
def test_layouts(sharing, pose, expected):
    layer = make_layer("dense", sharing=sharing, pose=pose, bias=True)
    assert {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()} == expected


def test_a_feature_map_is_flattened():
    layer = nn.DenseCaps(2 * 3 * 4, 5, 6, 7, routing=nn.DynamicRouting())
    children = Capsules.from_poses(torch.randn(2, 2, 3, 4, 6))
    mask = torch.rand(2, 2, 3, 4) < 0.5
    expected = layer(children.flatten(), mask=mask.flatten(1))
    torch.testing.assert_close(layer(children, mask=mask), expected, rtol=0, atol=0)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("pose", POSES)
def test_shared_weights_take_any_number_of_children_and_padding_changes_nothing(pose, routing):
    in_size, out_size = (3, 5) if pose == "vector" else (4, 4)
    layer = nn.DenseCaps(
        None, 3, in_size, out_size, routing=ROUTINGS[routing](), pose=pose, sharing="shared", bias=True,
        dtype=torch.float64,
    )  # fmt: skip
    lengths = [1, 4, 7]
    alone = [make_children("dense", batch_size=1, pose=pose) for _ in lengths]
    alone = [
        Capsules(*(part.repeat(1, 2, *[1] * (part.dim() - 2))[:, :n] for part in each))
        for each, n in zip(alone, lengths)
    ]
    poses = torch.full((3, 9, in_size), math.nan, dtype=torch.float64)
    activations = torch.full((3, 9), math.nan, dtype=torch.float64)
    for b, n in enumerate(lengths):
        poses[b, :n], activations[b, :n] = alone[b].poses[0], alone[b].activations[0]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    together = layer(Capsules(poses, activations), mask=mask)
    for b, each in enumerate(alone):
        single = layer(each)
        for part, whole in zip(single, together):
            torch.testing.assert_close(part[0], whole[b], rtol=1e-11, atol=1e-13)
    gradient = torch.autograd.grad(together.poses.sin().sum(), list(layer.parameters()), allow_unused=True)
    expected = torch.autograd.grad(
        sum(layer(each).poses.sin().sum() for each in alone), list(layer.parameters()), allow_unused=True
    )
    for one, other in zip(gradient, expected):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_example_without_children_has_silent_vector_parents_and_finite_gradients(routing):
    layer = make_layer("dense", routing)
    children, mask = make_children("dense"), torch.tensor([[True] * 5, [False] * 5])
    capsules = layer(children, mask=mask)
    (capsules.poses.sum() + capsules.activations.sum()).backward()
    if routing != "attention":  # where LayerNorm adds a shift
        assert not capsules.poses[1].any()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    if routing not in ("em", "vb", "heinsen"):  # whose activations are sigmoids
        assert not capsules.activations[1].any()


def test_the_start():
    wide = nn.DenseCaps(1152, 10, 8, 16, routing=nn.DynamicRouting())
    assert wide.weight.std().item() == pytest.approx(math.sqrt(1 / 8), rel=0.01)
    assert nn.DenseCaps(
        1152, 10, 8, 16, routing=nn.DynamicRouting(), weight_std=0.01
    ).weight.std().item() == pytest.approx(0.01, rel=0.01)
    matrix = nn.DenseCaps(200, 10, 16, 16, pose="matrix", routing=nn.EMRouting(), bias=True)
    torch.testing.assert_close(matrix.weight.mean((0, 1)), torch.eye(4), rtol=0, atol=0.02)
    assert (matrix.weight - torch.eye(4)).std().item() == pytest.approx(0.1, rel=0.02)
    assert not matrix.bias.any()
    nearer = nn.DenseCaps(200, 10, 16, 16, pose="matrix", routing=nn.EMRouting(), weight_std=0.03)
    assert (nearer.weight - torch.eye(4)).std().item() == pytest.approx(0.03, rel=0.02)


def test_errors():
    routing = nn.DynamicRouting
    with pytest.raises(ValueError, match="full weights need in_capsules; only shared weights take any number"):
        nn.DenseCaps(None, 3, 4, 4, routing=routing())
    with pytest.raises(ValueError, match="in_capsules must be at least 1, got 0"):
        nn.DenseCaps(0, 3, 4, 4, routing=routing())
    with pytest.raises(ValueError, match="sharing must be one of .* got 'shard'; did you mean 'shared'"):
        nn.DenseCaps(5, 3, 4, 4, routing=routing(), sharing="shard")
    with pytest.raises(ValueError, match="pose must be one of 'vector', 'matrix', got 'matrx'; did you mean 'matrix'"):
        nn.DenseCaps(5, 3, 4, 4, routing=routing(), pose="matrx")
    with pytest.raises(ValueError, match="matrix poses keep their size: in_size 16 and out_size 9 differ"):
        nn.DenseCaps(5, 3, 16, 9, routing=routing(), pose="matrix")
    with pytest.raises(ValueError, match="a matrix pose needs a square number of entries such as 16"):
        nn.DenseCaps(5, 3, 8, 8, routing=routing(), pose="matrix")
    with pytest.raises(TypeError, match="routing must be an instance such as DynamicRouting()"):
        nn.DenseCaps(5, 3, 4, 4, routing=nn.DynamicRouting)
    layer = nn.DenseCaps(5, 3, 4, 6, routing=routing())
    for wrong in ((2, 6, 4), (2, 5, 3)):
        with pytest.raises(ValueError, match=r"poses must have shape \(B, 5, 4\), got \(2, "):
            layer(Capsules.from_poses(torch.randn(wrong)))
    with pytest.raises(ValueError, match=r"poses must have shape \(B, I, 4\), got \(2, 6, 3\)"):
        nn.DenseCaps(None, 3, 4, 6, sharing="shared", routing=routing())(Capsules.from_poses(torch.randn(2, 6, 3)))
    with pytest.raises(ValueError, match=r"mask must have shape \(B, I\) = \(2, 5\), got \(2, 4\)"):
        layer(Capsules.from_poses(torch.randn(2, 5, 4)), mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask must be a boolean tensor"):
        layer(Capsules.from_poses(torch.randn(2, 5, 4)), mask=torch.ones(2, 5))
    with pytest.raises(TypeError, match="float64"):
        layer(Capsules.from_poses(torch.randn(2, 5, 4, dtype=torch.float64)))
