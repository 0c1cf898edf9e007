"""Padding and dilation: children outside the map take no part, on every backend."""

import pytest
import torch
from torch.testing import assert_close

from support.layers import ROUTINGS
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import use_backend
from torchcaps.votes import ConvVotes
from torchcaps.windows import GridWindow, Windows, border_of

BACKENDS = ("chunked", "fused")


def children(*shape, size=4):
    poses = torch.randn(*shape, size, dtype=torch.float64, requires_grad=True)
    activations = torch.rand(*shape, dtype=torch.float64, requires_grad=True)
    return Capsules(poses, activations)


def conv(routing, **options):
    arguments = {"kernel_size": 3, "padding": "same", "pose": "matrix", "dtype": torch.float64} | options
    layer = nn.ConvCaps2d(2, 3, 4, 4, routing=ROUTINGS[routing](), **arguments)
    with torch.no_grad():
        layer.weight += 0.3 * torch.randn_like(layer.weight)
    return layer


@pytest.mark.parametrize("routing", ["uniform", "dynamic", "em", "attention", "vb"])
def test_a_layer_with_padding_is_one_without_on_a_map_whose_border_is_masked(routing):
    layer, plain = conv(routing), conv(routing, padding=0)
    plain.load_state_dict(layer.state_dict())
    seen = children(2, 4, 5, 2)
    poses = torch.nn.functional.pad(seen.poses, (0, 0, 0, 0, 1, 1, 1, 1), value=float("nan"))
    activations = torch.nn.functional.pad(seen.activations, (0, 0, 1, 1, 1, 1), value=float("nan"))
    mask = torch.zeros(2, 6, 7, dtype=torch.bool)
    mask[:, 1:-1, 1:-1] = True
    votes = ConvVotes(Capsules(poses, activations), plain.transformation(), pose="matrix", mask=mask)
    expected, found = plain.routing(votes).capsules, layer(seen)
    assert found.poses.shape == (2, 4, 5, 3, 4)
    assert_close(found.poses, expected.poses)
    assert_close(found.activations, expected.activations)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("competition", ["window", "global"])
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_backends_agree_with_the_reference(routing, competition, backend):
    if backend == "fused" and library.why_not() is not None:
        pytest.skip("needs the compiled kernels")
    layer = conv(routing, stride=2, padding=(2, 1), dilation=(2, 1))
    layer.routing = ROUTINGS[routing](competition=competition).double()
    layer.routing.bind(3, 4, num_owners=18, child_size=4, dtype=torch.float64)
    seen = children(2, 5, 4, 2)
    answers = []
    for name in ("reference", backend):
        with use_backend(name):
            parents = layer(seen)
        loss = parents.poses.sin().sum() + parents.activations.cos().sum() + 0 * seen.activations.sum()
        answers.append((*parents, *torch.autograd.grad(loss, [seen.poses, seen.activations, layer.weight])))
    for found, expected in zip(*answers, strict=True):
        assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_uniform_routing_is_a_dilated_convolution_with_padding():
    layer = nn.ConvCaps2d(2, 3, 4, 5, 3, 2, padding=2, dilation=2, routing=nn.UniformRouting())
    poses = torch.randn(2, 9, 8, 2, 4)
    weight = layer.weight.permute(3, 5, 2, 4, 0, 1).reshape(15, 8, 3, 3)
    maps = poses.flatten(-2).permute(0, 3, 1, 2)
    sums = torch.nn.functional.conv2d(maps, weight, stride=2, padding=2, dilation=2) / 3
    expected = nn.squash(sums.permute(0, 2, 3, 1).unflatten(-1, (3, 5)))
    assert_close(layer(Capsules.from_poses(poses)).poses, expected, rtol=1e-4, atol=1e-5)


def test_parents_at_the_edge_are_means_of_what_is_there():
    """Zeros that voted would pull the mean of the votes, which is what EM makes of them, to a fraction of it."""
    layer = nn.ConvCaps2d(1, 1, 4, 4, 3, padding="same", pose="matrix", routing=nn.EMRouting())
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2).expand_as(layer.weight))
    pose = torch.randn(4)
    parents = layer(Capsules(pose.expand(1, 5, 5, 1, 4), torch.ones(1, 5, 5, 1)))
    assert_close(parents.poses, pose.expand(1, 5, 5, 1, 4), rtol=1e-5, atol=1e-6)


def test_a_padded_text_behaves_as_it_does_alone():
    layer = nn.ConvCaps1d(2, 3, 4, 4, 3, padding="same", routing=nn.DynamicRouting(), dtype=torch.float64)
    seen = children(1, 9, 2)
    mask = (torch.arange(9) < 6).unsqueeze(0)
    alone = layer(Capsules(seen.poses[:, :6], seen.activations[:, :6]))
    among = layer(seen, mask=mask)
    assert layer.output_mask(mask).tolist() == [[True] * 6 + [False] * 3]
    assert_close(among.poses[:, :6], alone.poses)
    assert among.poses[:, 6:].abs().sum() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 2, "padding": "same"}, "odd size"),
        ({"kernel_size": 3, "padding": 3}, "would see nothing"),
        ({"kernel_size": 3, "padding": "valid"}, "padding must be 'same' or a number"),
        ({"kernel_size": 3, "padding": -1}, "at least 0"),
        ({"kernel_size": 3, "dilation": 0}, "dilation must be a positive integer"),
    ],
)
def test_what_padding_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        nn.ConvCaps2d(2, 3, 4, 4, routing=nn.DynamicRouting(), **options)


def test_windows_that_lie_in_the_padding_with_all_places_are_refused():
    with pytest.raises(ValueError, match="sees nothing of a map"):
        ConvVotes(torch.randn(1, 1, 1, 4), torch.randn(2, 1, 3, 4, 4), padding=2, dilation=3)


def test_windows_with_holes():
    windows = Windows((7,), 1, (3,), (1,), (2,), (1,))
    assert windows.children().tolist() == [[0, 2, 4], [1, 3, 5], [2, 4, 6]]
    assert windows.inside().tolist() == [1, 2, 3, 4, 5]
    assert border_of("same", (5, 3), (1, 3)) == (2, 3)
    seen = GridWindow((0, 0), (1, 1), (2, 2)).through((3, 3), (1, 1), (2, 2), (2, 2))
    assert seen == GridWindow((-4, -4), (9, 9), (2, 2))
