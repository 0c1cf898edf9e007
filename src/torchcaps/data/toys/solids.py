"""Solids as signed distances: negative inside, positive outside, zero on the surface.

Ellipsoids, limbs with two radii and blends are right at the surface and a little off away from it: near enough for rays
that come back when they have gone too far. Coordinates are x forward, y up, z to the side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot

import torch
from torch import Tensor

Point = tuple[float, float, float]
Place = tuple[float, float]

# The two axes of the plane that stands upright on an axis, in the order in which outlines give them.
PLANES = {"x": (1, 2), "y": (0, 2), "z": (0, 1)}


@dataclass(frozen=True)
class Solid:
    """A signed distance and the box that holds all points where it is not positive.

    Attributes:
        distance: Points (P, 3) to distances (P,).
        low: Smallest coordinates.
        high: Largest coordinates.
    """

    distance: Callable[[Tensor], Tensor]
    low: Point
    high: Point


def limb(start: Point, end: Point, start_radius: float, end_radius: float | None = None) -> Solid:
    """A line with a radius that changes evenly from one end to the other, round at the ends."""
    end_radius = start_radius if end_radius is None else end_radius
    axis = torch.tensor(end) - torch.tensor(start)

    def distance(points: Tensor) -> Tensor:
        offset = points - points.new_tensor(start)
        share = ((offset @ axis) / axis.square().sum()).clamp(0, 1)
        nearest = (offset - share.unsqueeze(1) * axis).square().sum(1).sqrt()
        return nearest - (start_radius + (end_radius - start_radius) * share)

    return Solid(
        distance,
        _point(min(s - start_radius, e - end_radius) for s, e in zip(start, end, strict=True)),
        _point(max(s + start_radius, e + end_radius) for s, e in zip(start, end, strict=True)),
    )


def ball(centre: Point, radii: Point) -> Solid:
    """An ellipsoid."""

    def distance(points: Tensor) -> Tensor:
        scaled = (points - points.new_tensor(centre)) / points.new_tensor(radii)
        length = scaled.square().sum(1).sqrt()
        slope = (scaled / points.new_tensor(radii)).square().sum(1).sqrt()
        return (length - 1) * (length / slope.clamp_min(1e-9)).clamp(min(radii), max(radii))

    return Solid(
        distance,
        _point(c - r for c, r in zip(centre, radii, strict=True)),
        _point(c + r for c, r in zip(centre, radii, strict=True)),
    )


def prism(axis: str, outline: Sequence[Place], low: float, high: float, *, rounding: float = 0.02) -> Solid:
    """A convex outline drawn out along an axis, from low to high, with rounded edges.

    Args:
        axis: "x", "y" or "z".
        outline: Corners in order, either way round: (y, z) for axis x, (x, z) for y, (x, y) for z.
        low: Where it starts on the axis.
        high: Where it ends.
        rounding: Radius of the edges, which keep inside the outline.
    """
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in _sides(outline))
    outline = outline if area > 0 else outline[::-1]

    def beside(first: Tensor, second: Tensor) -> Tensor:
        planes = []
        for (a, b), (c, d) in _sides(outline):  # outwards of a side that runs against the clock lies to its right
            length = hypot(c - a, d - b)
            planes.append(((first - a) * (d - b) - (second - b) * (c - a)) / length)
        return torch.stack(planes).amax(0)

    least, most = ((extreme(x for x, _ in outline), extreme(y for _, y in outline)) for extreme in (min, max))
    return _drawn_out(axis, beside, least, most, low, high, rounding)


def cuboid(low: Point, high: Point, *, rounding: float = 0.02) -> Solid:
    """A box between two corners."""
    outline = ((low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1]))
    return prism("z", outline, low[2], high[2], rounding=rounding)


def drum(axis: str, centre: Place, radius: float, low: float, high: float, *, rounding: float = 0.02) -> Solid:
    """A cylinder along an axis, from low to high; its centre is given as the corners of an outline are."""

    def beside(first: Tensor, second: Tensor) -> Tensor:
        return torch.hypot(first - centre[0], second - centre[1]) - radius

    least, most = (centre[0] - radius, centre[1] - radius), (centre[0] + radius, centre[1] + radius)
    return _drawn_out(axis, beside, least, most, low, high, rounding)


def _drawn_out(
    axis: str,
    beside: Callable[[Tensor, Tensor], Tensor],
    least: Place,
    most: Place,
    low: float,
    high: float,
    rounding: float,
) -> Solid:
    """A flat shape drawn out along an axis: `beside` is its signed distance in the plane, from `least` to `most`."""
    along, plane = "xyz".index(axis), PLANES[axis]

    def distance(points: Tensor) -> Tensor:
        across = beside(points[:, plane[0]], points[:, plane[1]]) + rounding
        beyond = (points[:, along] - (low + high) / 2).abs() - (high - low) / 2 + rounding
        inside = torch.maximum(across, beyond).clamp_max(0)
        return inside + torch.hypot(across.clamp_min(0), beyond.clamp_min(0)) - rounding

    corners = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    corners[0][along], corners[1][along] = low, high
    for number, coordinate in enumerate(plane):
        corners[0][coordinate], corners[1][coordinate] = least[number], most[number]
    return Solid(distance, _point(corners[0]), _point(corners[1]))


def join(solids: Sequence[Solid], *, blend: float = 0.0) -> Solid:
    """All solids together; with a blend, seams are filled smoothly, by a quarter of it at most."""

    def distance(points: Tensor) -> Tensor:
        whole = solids[0].distance(points)
        for solid in solids[1:]:
            other = solid.distance(points)
            closeness = (blend - (whole - other).abs()).clamp_min(0)
            whole = torch.minimum(whole, other)
            if blend:
                whole = whole - closeness.square() / (4 * blend)
        return whole

    return Solid(
        distance,
        _point(min(solid.low[axis] for solid in solids) for axis in range(3)),
        _point(max(solid.high[axis] for solid in solids) for axis in range(3)),
    )


def _sides(outline: Sequence[Place]) -> list[tuple[Place, Place]]:
    return list(zip(outline, [*outline[1:], outline[0]], strict=True))


def _point(coordinates) -> Point:
    x, y, z = coordinates
    return float(x), float(y), float(z)
