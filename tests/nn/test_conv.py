"""Convolutional layers: windows and positions, competition, padding."""

import math

import numpy as np
import pytest
import torch

from support.layers import POSES, ROUTINGS, loop_result, make_children, make_layer, scalar
from torchcaps import nn
from torchcaps.capsules import Capsules

COMPETITIONS = ("window", "global")


def seeing(place, size, kernel, stride):
    """The windows along one axis that see a place."""
    return [n for n in range((size - kernel) // stride + 1) if n * stride <= place < n * stride + kernel]


@pytest.mark.parametrize("routing", ["uniform", "dynamic", "em"])
@pytest.mark.parametrize("place", [(0, 0), (2, 3), (4, 1), (5, 4), (7, 6)])
def test_one_hot_pixel_reaches_the_windows_that_see_it(place, routing):
    """8 rows and 7 columns, kernel and stride are different on purpose: exchanged axes would show."""
    options = {"num_iterations": 1} if routing == "em" else {}  # later, all but the best window get nothing
    layer = nn.ConvCaps2d(1, 2, 3, 4, kernel_size=(3, 2), stride=(2, 1), routing=ROUTINGS[routing](**options))
    poses = torch.zeros(1, 8, 7, 1, 3)
    poses[0, *place, 0] = 1.0
    parents = layer(Capsules(poses, torch.ones(1, 8, 7, 1))).poses
    assert parents.shape == (1, 3, 6, 2, 4)
    rows, columns = seeing(place[0], 8, 3, 2), seeing(place[1], 7, 2, 1)
    expected = {(row, column) for row in rows for column in columns}
    assert {tuple(entry) for entry in parents[0].abs().sum((-2, -1)).nonzero().tolist()} == expected
    assert expected or place[0] == 7  # the last row is seen by no window


def test_the_slot_of_a_pixel_has_the_weight_of_its_place_in_the_window():
    layer = nn.ConvCaps2d(2, 1, 3, 3, kernel_size=(3, 2), routing=nn.UniformRouting())
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[2, 1, 1, 0] = torch.eye(3)  # third row, second column, second type
    poses = torch.randn(1, 5, 4, 2, 3)
    parents = layer(Capsules.from_poses(poses)).poses
    torch.testing.assert_close(parents[0, :, :, 0], nn.squash(poses[0, 2:, 1:, 1]))


def test_the_layer_equals_a_convolution_when_routing_is_uniform():
    layer = nn.ConvCaps2d(2, 3, 4, 5, kernel_size=3, stride=2, routing=nn.UniformRouting())
    poses = torch.randn(2, 9, 8, 2, 4)
    weight = layer.weight.permute(3, 5, 2, 4, 0, 1).reshape(15, 8, 3, 3)  # (J D, C K, kh, kw)
    sums = torch.nn.functional.conv2d(poses.flatten(-2).permute(0, 3, 1, 2), weight, stride=2) / 3
    expected = nn.squash(sums.permute(0, 2, 3, 1).unflatten(-1, (3, 5)))
    torch.testing.assert_close(layer(Capsules.from_poses(poses)).poses, expected, rtol=1e-4, atol=1e-5)


def test_published_sizes():
    layer = nn.ConvCaps2d(4, 5, 16, 16, kernel_size=3, stride=2, pose="matrix", routing=nn.EMRouting())
    children = Capsules(torch.randn(1, 14, 14, 4, 16), torch.rand(1, 14, 14, 4))
    assert layer(children).activations.shape == (1, 6, 6, 5)
    assert layer.weight.shape == (3, 3, 4, 5, 4, 4)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_child_that_no_window_sees_gets_zero_gradient(routing, competition):
    layer = make_layer("conv2d", routing, options={"competition": competition})
    children = make_children("conv2d")
    poses = children.poses.requires_grad_()
    scalar(layer(Capsules(poses, children.activations))).backward()
    assert poses.grad.isfinite().all()
    assert not poses.grad[:, 5].any()  # kernel 3, stride 2: 6 rows, the last is left over
    assert all(poses.grad[:, row].any() for row in range(5))


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("self_attention", "max_min")])
def test_couplings_sum_to_one_over_the_parents_that_compete(routing, competition):
    layer = make_layer("conv1d", routing, options={"competition": competition})
    coupling = layer.route(make_children("conv1d")).coupling  # (B, 4 windows, 3 * 2 slots, J)
    per_slot = coupling.sum(-1).unflatten(-1, (3, 2))
    if competition == "window":
        torch.testing.assert_close(per_slot, torch.ones_like(per_slot))
        return
    per_child = torch.zeros(2, 6, 2, dtype=torch.float64)
    for window in range(4):
        per_child[:, window : window + 3] += per_slot[:, window]
    torch.testing.assert_close(per_child, torch.ones_like(per_child))


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_masked_sequences_equal_the_loops(routing, competition):
    layer = make_layer("conv1d", routing, bias=True, options={"competition": competition})
    children, mask = make_children("conv1d"), torch.arange(6) < torch.tensor([[4], [6]])
    result = layer.route(children, mask=mask)
    expected = loop_result(
        layer, "conv1d", children, mask=mask[..., None].expand(2, 6, 2),
        window_mask=torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool(), competition=competition,
    )  # fmt: skip
    np.testing.assert_allclose(result.capsules.poses.detach(), expected.poses, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.capsules.activations.detach(), expected.activations, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.coupling, expected.coupling, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_padding_changes_no_output_and_no_gradient(routing, competition, pose):
    """A sequence alone, and the same sequence in a batch whose padding is NaN."""
    layer = make_layer("conv1d", routing, pose=pose, bias=True, options={"competition": competition})
    lengths, size = (3, 5, 6), layer.in_size
    poses = torch.randn(3, 8, 2, size, dtype=torch.float64)
    activations = torch.rand(3, 8, 2, dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor(lengths)[:, None]
    poses[~mask], activations[~mask] = math.nan, math.nan
    leaves = [poses.requires_grad_(), activations.requires_grad_()]
    parameters = list(layer.parameters())
    together = layer(Capsules(*leaves), mask=mask)
    exists = layer.output_mask(mask)
    assert exists.sum(1).tolist() == [length - 2 for length in lengths]
    assert not together.activations[~exists].any()
    assert not together.poses[~exists].any()
    total, alone_gradients = 0.0, []
    for b, length in enumerate(lengths):
        single = [leaf[b : b + 1, :length].detach().requires_grad_() for leaf in leaves]
        alone = layer(Capsules(*single))
        for part, whole in zip(alone, together):
            torch.testing.assert_close(part[0], whole[b, : length - 2], rtol=1e-11, atol=1e-13)
        loss = alone.poses.sin().sum() + alone.activations.cos().sum()
        alone_gradients.append(torch.autograd.grad(loss, single, retain_graph=True, allow_unused=True))
        total = total + loss
    whole_loss = together.poses[exists].sin().sum() + together.activations[exists].cos().sum()
    *whole_gradients, = torch.autograd.grad(whole_loss, leaves, retain_graph=True, allow_unused=True)  # fmt: skip
    for whole, parts in zip(whole_gradients, zip(*alone_gradients)):
        if whole is None:  # only EM weighs children by their activations
            assert routing != "em"
            continue
        for b, (part, length) in enumerate(zip(parts, lengths)):
            torch.testing.assert_close(part[0], whole[b, :length], rtol=1e-9, atol=1e-11)
            assert not whole[b, length:].any()
    for one, other in zip(torch.autograd.grad(whole_loss, parameters), torch.autograd.grad(total, parameters)):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_text_too_short_for_any_window_is_silent_and_harmless(routing, competition):
    layer = make_layer("conv1d", routing, options={"competition": competition})
    children, mask = make_children("conv1d"), torch.arange(6) < torch.tensor([[2], [6]])
    capsules = layer(children, mask=mask)
    scalar(capsules).backward()
    assert not capsules.activations[0].any()
    assert not capsules.poses[0].any()
    assert capsules.activations[1].all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_mask_of_the_parents_in_two_dimensions():
    layer = make_layer("conv2d")
    mask = torch.ones(1, 6, 3, dtype=torch.bool)
    mask[0, 3, 0] = False  # seen by the second window of rows, the first of columns
    assert layer.output_mask(mask).tolist() == [[[True, True], [False, True]]]


def test_errors():
    layer = make_layer("conv2d")
    with pytest.raises(ValueError, match=r"poses must have shape \(B, H, W, 2, 3\), got \(1, 6, 3, 4, 3\)"):
        layer(Capsules.from_poses(torch.randn(1, 6, 3, 4, 3, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"poses must have shape \(B, H, W, 2, 3\), got \(1, 6, 3, 2, 4\)"):
        layer(Capsules.from_poses(torch.randn(1, 6, 3, 2, 4, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"a window of \(3, 2\) does not fit into a map of \(2, 3\)"):
        layer(Capsules.from_poses(torch.randn(1, 2, 3, 2, 3, dtype=torch.float64)))
    with pytest.raises(ValueError, match="mask must have one entry per position, 3 axes"):
        layer(make_children("conv2d"), mask=torch.ones(2, 6, 3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"poses must have shape \(B, T, 2, 3\)"):
        make_layer("conv1d")(make_children("conv2d"))
    for wrong in (0, (3,), (3, 0), 1.5):
        with pytest.raises((ValueError, TypeError)):
            nn.ConvCaps2d(2, 2, 3, 3, kernel_size=wrong, routing=nn.DynamicRouting())
