"""The renderer against geometry that can be worked out by hand."""

import math
from functools import partial

import pytest
import torch

from torchcaps.data.toys import render as renderer
from torchcaps.data.toys.render import CELL, LIGHTINGS, bake, camera_rays, lightness, march, render
from torchcaps.data.toys.shapes import Toy
from torchcaps.data.toys.solids import ball, cuboid, join

RADIUS = 0.8


@pytest.fixture
def sphere():
    """A sphere that is scaled to a diameter of 1.6 and stands on the floor."""
    return bake(Toy(ball((3.0, 1.0, -2.0), (0.2, 0.2, 0.2)), length=2 * RADIUS))


@pytest.fixture
def few_views(monkeypatch):
    monkeypatch.setattr(renderer, "ELEVATIONS", (30, 70))


def test_rays_meet_a_sphere_where_they_should(sphere):
    random = torch.Generator().manual_seed(0)
    origins = torch.nn.functional.normalize(torch.randn(4000, 3, generator=random), dim=1) * 5
    origins[:, 1] += RADIUS
    targets = torch.rand(4000, 3, generator=random) * 3 - 1.5 + torch.tensor([0.0, RADIUS, 0.0])
    directions = torch.nn.functional.normalize(targets - origins, dim=1)
    to_centre = torch.tensor([0.0, RADIUS, 0.0]) - origins
    along = (to_centre * directions).sum(1)
    beside = (to_centre.square().sum(1) - along.square()).sqrt()
    travelled, is_hit = march(sphere, origins, directions)
    assert is_hit[beside < RADIUS - CELL].all()
    assert not is_hit[beside > RADIUS + CELL].any()
    sure = beside < RADIUS - 5 * CELL
    expected = along[sure] - (RADIUS**2 - beside[sure] ** 2).sqrt()
    assert (travelled[sure] - expected).abs().max() < 0.5 * CELL
    normals = sphere.normals(origins[sure] + travelled[sure, None] * directions[sure])
    radial = torch.nn.functional.normalize(expected[:, None] * directions[sure] - to_centre[sure], dim=1)
    assert (normals * radial).sum(1).min() > 0.99


def test_shadows_are_dark_in_the_middle_soft_at_the_edge_and_gone_outside(sphere):
    light = torch.tensor([0.6, 0.8, 0.0])
    middle = -RADIUS / 0.8 * 0.6  # where the ray through the centre meets the floor
    places = middle - torch.linspace(0, 3, 61)
    share = lightness(sphere, torch.stack((places, torch.zeros(61), torch.zeros(61)), dim=1), light)
    # the ray through the rim of the sphere meets the floor RADIUS / 0.8 further on
    rim = middle - RADIUS / 0.8
    assert (share[places > rim + 0.05] == 0).all()
    assert (share[places < rim - 0.6] == 1).all()
    edge = share[(places < rim) & (places > rim - 0.3)]
    assert ((edge > 0.01) & (edge < 0.99)).sum() >= 3
    assert (share.diff() >= -0.02).all()


def test_the_toy_turns_and_camera_and_lights_stay(few_views):
    sharp = partial(cuboid, rounding=0.0)
    ahead = join((sharp((-0.5, 0.0, -0.2), (0.5, 0.3, 0.2)), sharp((0.3, 0.3, 0.0), (0.5, 0.7, 0.2))))
    # a quarter turn takes (x, z) to (-z, x)
    aside = join((sharp((-0.2, 0.0, -0.5), (0.2, 0.3, 0.5)), sharp((-0.2, 0.3, 0.3), (0.0, 0.7, 0.5))))
    still = render(bake(Toy(aside, 1.5)), 0, size=48).float()
    right, wrong = ((render(bake(Toy(ahead, 1.5)), turn, size=48).float() - still).abs().mean() for turn in (90, 270))
    assert right < 2.5  # of 255: prisms are not quite alike from all sides, and shadows show it
    assert wrong > 8


def test_aims_move_the_toy_in_the_picture(few_views):
    field = bake(Toy(cuboid((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), 0.5))
    above = torch.tensor([[0.0, 0.3, 0.0], [0.0, 0.0, 0.0]])
    straight, aimed = render(field, 0, size=48), render(field, 0, size=48, aims=above)
    assert torch.equal(straight[1], aimed[1])
    # 30 degrees: what is 0.3 higher is 0.3 cos 30 higher in the picture, whose 48 pixels span 12 tan(11.5)
    pixels = round(0.3 * math.cos(math.radians(30)) * 48 / (12 * math.tan(math.radians(11.5))))
    change = aimed[0, 0, 0, pixels:].float() - straight[0, 0, 0, :-pixels].float()
    assert change.abs().mean() < 0.3 * (aimed[0, 0, 0].float() - straight[0, 0, 0].float()).abs().mean()


def test_cameras_look_at_the_middle_of_the_toy_from_their_elevation():
    for elevation in (30, 70):
        origins, directions = camera_rays(40, elevation, torch.tensor([0.0, 0.5, 0.0]), 48)
        left, right = origins[0], origins[-1]
        to_the_right = torch.linalg.cross(directions[0], torch.tensor([0.0, 1.0, 0.0]))
        assert ((right - left) * to_the_right).sum() > 0.1
        for origin in (left, right):
            across = math.hypot(float(origin[0]), float(origin[2]))
            assert math.degrees(math.atan2(float(origin[1]) - 0.5, across)) == pytest.approx(elevation, abs=0.25)
        assert (left - right).norm() == pytest.approx(renderer.CAMERA_GAP, abs=1e-3)
        middle_rows = directions.view(2, 48, 48, 3)[:, 23:25].mean(1)
        for first_row, other_row in (middle_rows, middle_rows.flip(0)):  # neither camera is rolled against the other
            level = torch.nn.functional.normalize(first_row[-1] - first_row[0], dim=0)
            assert (level * torch.nn.functional.normalize(other_row[-1] - other_row[0], dim=0)).sum() > 0.99
        centre = directions.view(2, 48, 48, 3)[0, 23:25, 23:25].mean((0, 1))
        to_middle = torch.nn.functional.normalize(torch.tensor([0.0, 0.5, 0.0]) - left, dim=0)
        assert torch.allclose(torch.nn.functional.normalize(centre, dim=0), to_middle, atol=1e-4)


def test_one_march_serves_all_lightings_and_they_differ(sphere, few_views, monkeypatch):
    calls = []
    monkeypatch.setattr(renderer, "march", lambda *arguments: calls.append(1) or march(*arguments))
    views = render(sphere, 0, size=48)
    assert views.shape == (2, len(LIGHTINGS), 2, 48, 48)
    assert views.dtype == torch.uint8
    assert len(calls) == 2  # elevations
    pictures = views[0, :, 0].float().flatten(1)
    assert torch.pdist(pictures).min() > 100
    assert pictures.max() < 255
    assert (pictures == 0).float().mean() < 0.02  # only where it touches the floor
    by_halves = views[0, :, 0, 12:36].unflatten(-1, (2, 24)).float().amax((1, 3))  # of the sphere, in each lighting
    assert by_halves[0, 1] > by_halves[0, 0] + 5  # the first light stands on the right, the second on the left
    assert by_halves[1, 0] > by_halves[1, 1] + 5
    assert not torch.equal(views[0, 0, 0], views[0, 0, 1])  # two cameras


def test_a_large_picture_reduced_looks_like_a_small_one(sphere, few_views):
    large = torch.nn.functional.avg_pool2d(render(sphere, 20, size=96).flatten(0, 2).float(), 2)
    small = render(sphere, 20, size=48).flatten(0, 2).float()
    assert (large - small).abs().mean() < 1
