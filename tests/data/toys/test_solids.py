"""Signed distances against membership and the nearest of many points on the inside."""

import pytest
import torch

from torchcaps.data.toys.solids import ball, cuboid, drum, join, limb, prism

SQUARE = ((0.1, -0.2), (0.7, -0.2), (0.7, 0.3), (0.1, 0.3))


def some_points(num: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(num, 3, generator=torch.Generator().manual_seed(seed)) * 3 - 1.5


def in_limb(points):
    return (
        torch.linalg.vector_norm(
            points - torch.stack((points[:, 0].clamp(-0.5, 0.6), *[torch.zeros(len(points))] * 2), 1), dim=1
        )
        < 0.3
    )


SOLIDS = {
    "limb": (limb((-0.5, 0.0, 0.0), (0.6, 0.0, 0.0), 0.3), in_limb),
    "ball": (
        ball((0.2, 0.1, 0.0), (0.5, 0.5, 0.5)),
        lambda p: ((p - torch.tensor([0.2, 0.1, 0.0])) ** 2).sum(1) < 0.25,
    ),
    "cuboid": (
        cuboid((-0.4, 0.1, -0.6), (0.5, 0.9, 0.2), rounding=0.0),
        lambda p: ((p > torch.tensor([-0.4, 0.1, -0.6])) & (p < torch.tensor([0.5, 0.9, 0.2]))).all(1),
    ),
    "drum": (
        drum("z", (0.1, 0.2), 0.5, -0.3, 0.4, rounding=0.0),
        lambda p: (torch.hypot(p[:, 0] - 0.1, p[:, 1] - 0.2) < 0.5) & (p[:, 2] > -0.3) & (p[:, 2] < 0.4),
    ),
    "prism": (
        prism("y", ((-0.6, -0.5), (0.6, -0.5), (0.0, 0.7)), -0.2, 0.3, rounding=0.0),
        lambda p: (p[:, 2] > -0.5) & (p[:, 2] < 0.7 - 2 * p[:, 0].abs()) & (p[:, 1] > -0.2) & (p[:, 1] < 0.3),
    ),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_distances_have_the_right_sign_and_size(name):
    solid, is_inside = SOLIDS[name]
    points = some_points(20_000)
    distance, inside = solid.distance(points), is_inside(points)
    assert 100 < inside.sum() < 10_000
    assert torch.equal(distance < 0, inside)
    low, high = torch.tensor(solid.low), torch.tensor(solid.high)
    assert ((points[inside] >= low) & (points[inside] <= high)).all()
    nearest = torch.cdist(points[~inside][:500], points[inside]).amin(1)
    assert (distance[~inside][:500] <= nearest + 1e-5).all()
    assert torch.allclose(solid.distance(points + 1e-3), distance, atol=1.001 * 3**0.5 * 1e-3 + 1e-5)  # slope 1 at most


@pytest.mark.parametrize("axis", "xyz")
def test_outlines_run_either_way_and_rounding_keeps_inside(axis):
    points = some_points(5000)
    sharp, turned, rounded = (
        prism(axis, outline, -0.4, 0.5, rounding=rounding)
        for outline, rounding in ((SQUARE, 0.0), (SQUARE[::-1], 0.0), (SQUARE, 0.1))
    )
    assert torch.allclose(sharp.distance(points), turned.distance(points), atol=1e-6)
    assert sharp.low == rounded.low
    assert (rounded.distance(points) >= sharp.distance(points) - 1e-6).all()
    along = "xyz".index(axis)
    assert (sharp.low[along], sharp.high[along]) == (-0.4, 0.5)


def test_ellipsoids_and_tapered_limbs_vanish_on_their_surface():
    directions = torch.nn.functional.normalize(some_points(500), dim=1)
    radii = (0.2, 0.5, 0.9)
    assert ball((0.0, 0.0, 0.0), radii).distance(directions * torch.tensor(radii)).abs().max() < 1e-6
    assert ball((0.0, 0.0, 0.0), radii).distance(torch.zeros(1, 3)) < -0.19
    cone = limb((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), 0.4, 0.1)
    surface = torch.tensor([[0.0, 0.4, 0.0], [0.5, 0.0, 0.25], [1.0, 0.1, 0.0], [1.1, 0.0, 0.0], [-0.4, 0.0, 0.0]])
    assert cone.distance(surface).abs().max() < 1e-6
    assert (cone.low, cone.high[0]) == (pytest.approx((-0.4, -0.4, -0.4)), pytest.approx(1.1))


def test_joined_solids_hold_each_other_and_blends_fill_the_seam():
    first, second = ball((0.0, 0.0, 0.0), (0.5, 0.5, 0.5)), cuboid((0.3, -0.1, -0.1), (1.0, 0.1, 0.1))
    points = some_points(5000)
    sharp, smooth = join((first, second)).distance(points), join((first, second), blend=0.2).distance(points)
    assert torch.equal(sharp, torch.minimum(first.distance(points), second.distance(points)))
    assert (smooth <= sharp).all()
    assert (smooth >= sharp - 0.05 - 1e-6).all()
    assert (smooth < sharp - 0.01).any()
    assert join((first, second)).high == (1.0, 0.5, 0.5)
