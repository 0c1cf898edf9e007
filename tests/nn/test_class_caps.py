"""Class layers: shared over positions, coordinates in the right entries, masks."""

import math

import pytest
import torch

from support.layers import ROUTINGS, make_children, make_layer
from torchcaps import nn
from torchcaps.capsules import Capsules


@pytest.mark.parametrize(
    ("pose", "size", "row_entry", "column_entry"), [("matrix", 16, 3, 7), ("matrix", 9, 2, 5), ("vector", 16, 0, 1)]
)
def test_coordinates_stand_in_the_right_entries(pose, size, row_entry, column_entry):
    layer = nn.ClassCaps(2, 3, size, size, pose=pose, routing=nn.EMRouting())
    votes = layer.votes(Capsules(torch.zeros(1, 4, 5, 2, size), torch.ones(1, 4, 5, 2))).materialise()
    votes = votes.view(4, 5, 2, 3, size)  # zero poses: nothing but coordinates
    for row in range(4):
        for column in range(5):
            expected = torch.zeros(size)
            expected[row_entry], expected[column_entry] = (row + 0.5) / 4, (column + 0.5) / 5
            torch.testing.assert_close(votes[row, column], expected.expand(2, 3, size))


def test_text_has_one_coordinate():
    layer = nn.ClassCaps(2, 3, 4, 4, routing=nn.DynamicRouting())
    votes = layer.votes(Capsules.from_poses(torch.zeros(1, 5, 2, 4))).materialise().view(5, 2, 3, 4)
    torch.testing.assert_close(votes[..., 0], ((torch.arange(5) + 0.5) / 5)[:, None, None].expand(5, 2, 3))
    assert not votes[..., 1:].any()


def test_one_hot_pixel_says_where_it_is():
    """With one active child the pose of every class holds the child's place."""
    layer = nn.ClassCaps(1, 2, 16, 16, pose="matrix", routing=nn.EMRouting())
    activations = torch.zeros(1, 4, 5, 1)
    activations[0, 1, 3] = 1.0
    poses = layer(Capsules(torch.zeros(1, 4, 5, 1, 16), activations)).poses
    torch.testing.assert_close(poses[0, :, 3], torch.full((2,), 1.5 / 4))
    torch.testing.assert_close(poses[0, :, 7], torch.full((2,), 3.5 / 5))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_without_coordinates_the_place_does_not_matter(routing):
    children = make_children("class")
    moved = Capsules(*(part.roll(1, 2) for part in children))
    blind, seeing = make_layer("class", routing, coordinates=False), make_layer("class", routing)
    torch.testing.assert_close(blind(moved), blind(children), rtol=1e-10, atol=1e-12)
    if routing != "uniform":  # whose sum over all places is the same
        assert not torch.allclose(seeing(moved).poses, seeing(children).poses, rtol=1e-3)


def test_types_own_their_transformation_and_positions_share_it():
    assert make_layer("class").weight.shape == (2, 3, 3, 5)
    assert nn.ClassCaps(32, 5, 16, 16, pose="matrix", routing=nn.EMRouting()).weight.shape == (32, 5, 4, 4)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_masked_positions_and_children_have_no_votes(routing):
    layer, children = make_layer("class", routing, bias=True), make_children("class")
    mask = torch.tensor([[True, False, True], [False, True, True]]).expand(2, 2, 3)
    by_position = layer(children, mask=mask)
    by_child = layer(children, mask=mask[..., None].expand(2, 2, 3, 2))
    torch.testing.assert_close(by_child, by_position, rtol=0, atol=0)
    poisoned = Capsules(
        *(part.masked_fill(~mask.view(2, 2, 3, *[1] * (part.dim() - 3)), math.nan) for part in children)
    )
    torch.testing.assert_close(layer(poisoned, mask=mask), by_position, rtol=0, atol=0)
    assert not torch.allclose(layer(children).poses, by_position.poses, rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 2, 2)])
def test_any_size_of_map(shape):
    layer = nn.ClassCaps(2, 3, 4, 6, routing=nn.KMeansRouting())
    if len(shape) == 3:
        with pytest.raises(ValueError, match=r"poses must have shape \(B, H, W, 2, 4\)"):
            layer(Capsules.from_poses(torch.randn(2, *shape, 2, 4)))
        return
    assert layer(Capsules.from_poses(torch.randn(2, *shape, 2, 4))).poses.shape == (2, 3, 6)


def test_errors():
    with pytest.raises(ValueError, match="coordinate addition needs larger votes than 1; set coordinates=False"):
        nn.ClassCaps(2, 3, 4, 1, routing=nn.DynamicRouting())(Capsules.from_poses(torch.randn(1, 2, 2, 2, 4)))
    with pytest.raises(ValueError, match="out_capsules must be at least 1, got 0"):
        nn.ClassCaps(2, 0, 4, 4, routing=nn.DynamicRouting())
    with pytest.raises(ValueError, match=r"poses must have shape \(B, H, W, 2, 3\), got \(1, 2, 3, 4, 3\)"):
        make_layer("class")(Capsules.from_poses(torch.randn(1, 2, 3, 4, 3, dtype=torch.float64)))
    with pytest.raises(ValueError, match="mask must have shape of positions or of children"):
        make_layer("class")(make_children("class"), mask=torch.ones(2, 6, dtype=torch.bool))
