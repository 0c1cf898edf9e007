"""A small renderer: rays march through a baked distance field; four lights, soft shadows, a floor.

The toy stands on a turntable: camera and lights keep their places, the toy turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, radians, sin, tan

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.toys.shapes import Toy

AZIMUTHS = tuple(range(0, 360, 20))
ELEVATIONS = tuple(range(30, 75, 5))
NUM_CAMERAS = 2
CAMERA_DISTANCE, CAMERA_GAP = 6.0, 0.6
VIEW_ANGLE = 23.0  # degrees from edge to edge

# Lights as (azimuth from the camera, elevation) in degrees, and the brightness of each in the six lightings.
LIGHTS = ((-60.0, 45.0), (50.0, 55.0), (-140.0, 40.0), (130.0, 60.0))
LIGHTINGS = (
    (0.75, 0.0, 0.0, 0.0),
    (0.0, 0.75, 0.0, 0.0),
    (0.3, 0.3, 0.0, 0.0),
    (0.1, 0.0, 0.7, 0.0),
    (0.0, 0.15, 0.0, 0.6),
    (0.2, 0.2, 0.15, 0.2),
)
AMBIENT = 0.3
TOY_SHADE, FLOOR_SHADE = 0.85, 0.85

CELL = 1 / 48  # of the baked distance field; a pixel of 48 x 48 spans about twice as much
MARGIN = 0.16  # around the toy, where shadows are soft
NUM_ROUNDS, NUM_SHADOW_ROUNDS, STEPS_PER_ROUND = 12, 8, 4
SOFTNESS = 7.0  # of shadows: light passes a blocker at distance t wholly from t / SOFTNESS on
FLOOR_EDGE = 2.6  # half the width of the floor's map, beyond all shadows
SUPERSAMPLES = 2  # rays per pixel, in each direction


@dataclass(frozen=True)
class Field:
    """Distances of a solid on a grid, the solid standing on the floor at the middle, fitted to a size.

    Attributes:
        distances: (1, 1, Z, Y, X).
        low: Coordinates of the first entry, (3,) as x, y, z.
        high: Coordinates of the last.
        height: Of the solid.
    """

    distances: Tensor
    low: Tensor
    high: Tensor
    height: float

    def place(self, points: Tensor) -> Tensor:
        """Points (P, 3) in units of the box, which runs from -1 to 1."""
        return 2 * (points - self.low) / (self.high - self.low) - 1

    def head(self, directions: Tensor) -> Tensor:
        """Directions (P, 3) in units of the box."""
        return 2 * directions / (self.high - self.low)

    def at(self, places: Tensor) -> Tensor:
        """Distances (P,) at places (P, 3) in units of the box; outside it, those of its faces."""
        places = places.view(1, -1, 1, 1, 3)
        return F.grid_sample(self.distances, places, padding_mode="border", align_corners=True).flatten()

    def normals(self, points: Tensor) -> Tensor:
        """Directions (P, 3) in which the distance grows fastest."""
        corners = points.new_tensor([[1, -1, -1], [-1, -1, 1], [-1, 1, -1], [1, 1, 1]])
        around = self.place((points.unsqueeze(1) + CELL * corners).flatten(0, 1))
        return F.normalize(self.at(around).view(-1, 4) @ corners, dim=1)

    def span(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Where rays enter and leave the box; they miss it if they would leave before they enter."""
        directions = torch.where(directions.abs() < 1e-6, 1e-6, directions)
        first, second = (self.low - origins) / directions, (self.high - origins) / directions
        return torch.minimum(first, second).amax(-1).clamp_min(0), torch.maximum(first, second).amin(-1)


def bake(toy: Toy) -> Field:
    """Distances of a toy that stands on the floor, in the middle."""
    solid = toy.solid
    low, high = torch.tensor(solid.low), torch.tensor(solid.high)
    scale = toy.length / float((high - low).max())
    centre = (low + high) / 2
    centre[1] = low[1]  # it stands on the floor
    box_low, box_high = (low - centre) * scale - MARGIN, (high - centre) * scale + MARGIN
    axes = [torch.linspace(float(a), float(b), int((b - a) / CELL) + 2) for a, b in zip(box_low, box_high, strict=True)]
    grid_ZYX3 = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).permute(2, 1, 0, 3)
    slabs = [solid.distance(slab.reshape(-1, 3) / scale + centre) * scale for slab in grid_ZYX3]
    distances = torch.stack(slabs).view(1, 1, *grid_ZYX3.shape[:3])
    return Field(distances, box_low, box_high, height=float(high[1] - low[1]) * scale)


def render(
    field: Field, azimuth: float, *, size: int, aims: Tensor | None = None, elevations: Sequence[int] | None = None
) -> Tensor:
    """All views of a toy that is turned by an azimuth.

    Args:
        field: The toy.
        azimuth: In degrees.
        size: Height and width of a picture.
        aims: How far beside the middle of the toy the cameras look; nothing when not given.
        elevations: In degrees; all of ELEVATIONS when not given.

    Shapes:
        aims: (E, 3), one for each elevation
        result: uint8 (E, L, 2, size, size), elevations, lightings, cameras
    """
    elevations = ELEVATIONS if elevations is None else elevations
    middle = torch.tensor([0.0, 0.5 * field.height, 0.0])
    targets_E3 = middle + (torch.zeros(len(elevations), 3) if aims is None else aims)
    lights = light_directions(azimuth)
    floor_1LZX = FLOOR_SHADE * floor_brightness(field, lights)
    num_rays = size * SUPERSAMPLES
    views = []
    for elevation, target in zip(elevations, targets_E3, strict=True):
        origins, directions = camera_rays(azimuth, elevation, target, num_rays)
        shades_RL = trace(field, origins, directions, lights, floor_1LZX)
        shades_CLHW = shades_RL.view(NUM_CAMERAS, num_rays, num_rays, len(LIGHTINGS)).permute(0, 3, 1, 2)
        views.append(F.avg_pool2d(shades_CLHW, SUPERSAMPLES))
    return (255 * torch.stack(views).clamp(0, 1)).round().to(torch.uint8).transpose(1, 2)


def camera_rays(azimuth: float, elevation: float, target: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rays of both cameras, which look from an elevation at a target (3,); the toy is turned by an azimuth.

    Shapes:
        origins and directions (2 * size * size, 3): left camera first, row by row
    """
    ticks = tan(radians(VIEW_ANGLE / 2)) * ((torch.arange(size) + 0.5) * 2 / size - 1)
    down, right = torch.meshgrid(ticks, ticks, indexing="ij")
    middle = CAMERA_DISTANCE * _direction(-azimuth, elevation)
    rightwards = F.normalize(torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0]), middle), dim=0)
    origins, directions = [], []
    for side in (-0.5, 0.5):
        offset = middle + side * CAMERA_GAP * rightwards
        towards = F.normalize(offset, dim=0)
        # one rig carries both cameras: what is level for one is level for the other
        aside = F.normalize(rightwards - (rightwards @ towards) * towards, dim=0)
        above = torch.linalg.cross(towards, aside)
        rays_HW3 = right.unsqueeze(2) * aside - down.unsqueeze(2) * above - towards
        origins.append((target + offset).expand(size * size, 3))
        directions.append(F.normalize(rays_HW3.flatten(0, 1), dim=1))
    return torch.cat(origins), torch.cat(directions)


def light_directions(azimuth: float) -> Tensor:
    """Directions towards the four lights (4, 3), seen from a toy that is turned by an azimuth."""
    return torch.stack([_direction(angle - azimuth, elevation) for angle, elevation in LIGHTS])


def trace(field: Field, origins: Tensor, directions: Tensor, lights: Tensor, floor_1LZX: Tensor) -> Tensor:
    """Brightness of rays in all lightings, (R, 3) -> (R, L).

    One march to the toy serves all lightings. Where it misses, the floor is seen; all views share its brightness.
    """
    distances, is_toy = march(field, origins, directions)
    to_floor = -origins[:, 1] / directions[:, 1]
    points = origins + torch.where(is_toy, distances, to_floor).unsqueeze(1) * directions
    shades_RL = torch.empty(len(points), len(LIGHTINGS))
    shades_RL[is_toy] = TOY_SHADE * brightness(field, points[is_toy], field.normals(points[is_toy]), lights)
    places = points[~is_toy][:, [0, 2]].view(1, 1, -1, 2) / FLOOR_EDGE
    seen_1L1R = F.grid_sample(floor_1LZX, places, align_corners=True, padding_mode="border")
    shades_RL[~is_toy] = seen_1L1R[0, :, 0].T
    return shades_RL


def floor_brightness(field: Field, lights: Tensor) -> Tensor:
    """The floor in all lightings as a map (1, L, Z, X) from -FLOOR_EDGE to FLOOR_EDGE."""
    ticks = torch.linspace(-FLOOR_EDGE, FLOOR_EDGE, int(FLOOR_EDGE / CELL))
    z, x = torch.meshgrid(ticks, ticks, indexing="ij")
    points = torch.stack((x, torch.zeros_like(x), z), dim=2).flatten(0, 1)
    upwards = points.new_tensor([0.0, 1.0, 0.0]).expand_as(points)
    return brightness(field, points, upwards, lights).view(*z.shape, -1).permute(2, 0, 1).unsqueeze(0)


def brightness(field: Field, points: Tensor, normals: Tensor, lights: Tensor) -> Tensor:
    """Light that falls on a surface in all lightings, (P, 3) -> (P, L): sum of lights and sky."""
    points = points + 1.5 * CELL * normals  # clear of the surface itself
    falling_PF = (normals @ lights.T).clamp_min(0)
    for number, light in enumerate(lights):
        faces = falling_PF[:, number] > 0
        falling_PF[faces, number] *= lightness(field, points[faces], light)
    return falling_PF @ torch.tensor(LIGHTINGS).T + AMBIENT * sky(field, points, normals).unsqueeze(1)


def march(field: Field, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (R,) at which each ray meets the toy, and whether it does.

    A ray goes as far as there is certainly nothing, again and again. Those that have arrived or left drop out after
    each round, not each step: to sort them costs as much as a step.
    """
    travelled, ends = field.span(origins, directions)
    is_hit = torch.zeros_like(travelled, dtype=torch.bool)
    under_way = (travelled < ends).nonzero().squeeze(1)
    origins, directions = field.place(origins[under_way]), field.head(directions[under_way])
    length, end = travelled[under_way], ends[under_way]
    for _ in range(NUM_ROUNDS):
        distance = length
        for _ in range(STEPS_PER_ROUND):
            distance = field.at(torch.addcmul(origins, length.unsqueeze(1), directions))
            length = torch.minimum(length + distance, end)
        travelled[under_way] = length
        has_arrived = distance < 0.25 * CELL
        is_hit[under_way[has_arrived & (length < end)]] = True
        goes_on = (~has_arrived & (length < end)).nonzero().squeeze(1)
        if not len(goes_on):
            break
        under_way, origins, directions = under_way[goes_on], origins[goes_on], directions[goes_on]
        length, end = length[goes_on], end[goes_on]
    return travelled, is_hit


def lightness(field: Field, points: Tensor, light: Tensor) -> Tensor:
    """Share of a light that reaches each point (P,): 0 behind the toy, 1 in the open, between the two at the edge."""
    starts, ends = field.span(points, light.expand_as(points))
    share = torch.ones_like(starts)
    under_way = (starts < ends).nonzero().squeeze(1)
    origins, direction = field.place(points[under_way]), field.head(light)
    length, end, passing = starts[under_way], ends[under_way], share[under_way]
    for _ in range(NUM_SHADOW_ROUNDS):
        for _ in range(STEPS_PER_ROUND):
            distance = field.at(torch.addcmul(origins, length.unsqueeze(1), direction))
            passing = torch.minimum(passing, SOFTNESS * distance / length.clamp_min(CELL))
            length = torch.minimum(length + distance.clamp_min(CELL), end)
        share[under_way] = passing
        goes_on = ((passing > 0) & (length < end)).nonzero().squeeze(1)
        if not len(goes_on):
            break
        under_way, origins, passing = under_way[goes_on], origins[goes_on], passing[goes_on]
        length, end = length[goes_on], end[goes_on]
    share = share.clamp(0, 1)
    return share * share * (3 - 2 * share)


def sky(field: Field, points: Tensor, normals: Tensor) -> Tensor:
    """Share of the sky's light that reaches each point (P,): less underneath and in corners."""
    probe = 0.12
    above = points + probe * normals
    is_near = ((above > field.low) & (above < field.high)).all(1)
    room = torch.ones(len(points))
    room[is_near] = (field.at(field.place(above[is_near])) / probe).clamp(0, 1)
    return room * (0.6 + 0.4 * normals[:, 1])


def _direction(azimuth: float, elevation: float) -> Tensor:
    across, up = cos(radians(elevation)), sin(radians(elevation))
    angle = azimuth * pi / 180
    return torch.tensor([across * cos(angle), up, across * sin(angle)])
