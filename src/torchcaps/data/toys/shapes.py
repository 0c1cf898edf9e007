"""Five categories of toys, ten instances of each, from random numbers that spread the ten evenly over every range.

Coordinates are x forward, y up, z to the side. Sizes are relative within a toy, which is scaled as a whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import cos, radians, sin
from typing import TypeVar

import numpy as np

from torchcaps.data.toys.solids import Point, Solid, ball, cuboid, drum, join, limb, prism

CATEGORIES = ("animal", "human", "aeroplane", "truck", "car")
NUM_INSTANCES = 10
LENGTHS = (1.4, 1.8)
SIDES = (-1, 1)

Choice = TypeVar("Choice")


class Draws:
    """The random numbers of one instance.

    For every question a range is cut into ten, and each of the ten instances of a category gets one of the cuts: few
    instances, but none of them like another.
    """

    def __init__(self, seed: int, category: int, instance: int) -> None:
        self.key, self.instance, self.num_questions = (seed, category), instance, 0

    def share(self) -> float:
        """A number between 0 and 1."""
        generator = np.random.default_rng([*self.key, self.num_questions])
        self.num_questions += 1
        cuts = generator.permutation(NUM_INSTANCES) + generator.random(NUM_INSTANCES)
        return float(cuts[self.instance] / NUM_INSTANCES)

    def between(self, low: float, high: float) -> float:
        """A number between two others."""
        return low + (high - low) * self.share()

    def pick(self, *choices: Choice) -> Choice:
        """One of several things, each as often as the others."""
        return choices[int(self.share() * len(choices))]


@dataclass(frozen=True)
class Toy:
    """A solid and the length to which its longest edge is scaled."""

    solid: Solid
    length: float


def make_toy(category: str, instance: int, seed: int) -> Toy:
    """One toy.

    Example:
        >>> solid = make_toy("car", 0, seed=0).solid
        >>> solid.high[0] - solid.low[0] > solid.high[1] - solid.low[1]  # longer than it is high
        True
    """
    draws = Draws(seed, CATEGORIES.index(category), instance)
    return Toy(MAKERS[category](draws), length=draws.between(*LENGTHS))


def make_animal(draws: Draws) -> Solid:
    """Four legs, a trunk, neck, head with snout and ears or horns, a tail."""
    leg, length = draws.between(0.35, 0.75), draws.between(0.38, 0.6)
    girth, leanness = draws.between(0.15, 0.27), draws.between(0.75, 1.05)
    neck, neck_angle = draws.between(0.18, 0.6), radians(draws.between(25, 70))
    skull, snout = draws.between(0.11, 0.17), draws.between(0.14, 0.3)
    thickness = draws.between(0.05, 0.1)
    height = leg + 0.6 * girth
    shoulder, hip = (length, height, 0.0), (-length, height, 0.0)
    withers = (length + 0.3 * girth, height + 0.35 * girth, 0.0)
    crown = _step(withers, neck, neck_angle)
    nose = _step(crown, snout, radians(draws.between(-60, -10)))
    tail_end = _step(hip, draws.between(0.25, 0.6), radians(draws.between(120, 235)))
    parts = [
        limb(shoulder, hip, girth, girth * leanness),
        limb(withers, crown, 0.62 * girth, 0.5 * girth),
        limb(crown, nose, skull, 0.55 * skull),
        limb((-length - 0.6 * girth, height + 0.4 * girth, 0.0), tail_end, 0.05, 0.035),
    ]
    for end, side in product((shoulder, hip), SIDES):
        top = (end[0], height - 0.3 * girth, side * 0.6 * girth)
        swing = radians(draws.between(-16, 16))
        knee = _step(top, 0.5 * top[1], radians(-90) + swing)
        foot = (knee[0] - 0.5 * sin(swing) * knee[1], thickness, knee[2])
        parts += [limb(top, knee, 1.5 * thickness, thickness), limb(knee, foot, thickness)]
    ear, ear_angle, ear_spread = draws.between(0.08, 0.22), radians(draws.between(60, 130)), draws.between(0.5, 1.3)
    for side in SIDES:
        root = (crown[0], crown[1] + 0.6 * skull, side * 0.6 * skull)
        tip = _step(root, ear, ear_angle)
        parts.append(limb(root, (tip[0], tip[1], root[2] * (1 + ear_spread)), 0.05, 0.03))
    return join(parts, blend=0.08)


def make_human(draws: Draws) -> Solid:
    """Head, trunk, two arms, two legs, in the middle of some movement."""
    leg, trunk = draws.between(0.72, 0.9), draws.between(0.48, 0.58)
    shoulders, hips = draws.between(0.17, 0.25), draws.between(0.09, 0.14)
    depth, thickness = draws.between(0.1, 0.16), draws.between(0.055, 0.085)
    skull, lean = draws.between(0.12, 0.16), radians(90 - draws.between(-5, 18))
    pelvis = (0.0, leg, 0.0)
    chest = _step(pelvis, 0.8 * trunk, lean)
    neck = _step(pelvis, trunk + 0.05, lean)
    head = _step(neck, 0.9 * skull, lean)
    parts = [
        limb(pelvis, chest, depth, 1.15 * depth),
        limb((chest[0], chest[1], -shoulders), (chest[0], chest[1], shoulders), 0.1),
        limb((0.0, leg, -hips), (0.0, leg, hips), 0.1),
        limb(chest, neck, 0.07),
        ball(head, (skull, 1.2 * skull, 0.95 * skull)),
    ]
    stride = draws.between(0, 28)
    for side, bend in ((-1, draws.between(0, 25)), (1, draws.between(0, 25))):
        top, angle = (0.0, leg, side * hips), radians(-90 + side * stride)
        knee = _step(top, 0.5 * leg, angle)
        foot = _step(knee, 0.5 * leg - thickness, angle - radians(bend if side < 0 else 0.4 * bend))
        foot = (foot[0], max(foot[1], thickness), foot[2] + side * draws.between(0, 0.1))
        toes = (foot[0] + 0.16, foot[1] - 0.2 * thickness, foot[2])
        parts += [limb(top, knee, 1.5 * thickness, 1.1 * thickness), limb(knee, foot, 1.1 * thickness, 0.9 * thickness)]
        parts.append(limb(foot, toes, 0.8 * thickness))
    for side in SIDES:
        shoulder = (chest[0], chest[1] + 0.02, side * (shoulders + 0.06))
        swing, spread = radians(draws.between(-40, 130)), radians(draws.between(8, 75))
        elbow = _reach(shoulder, 0.3, swing, side * spread)
        hand = _reach(elbow, 0.3, swing + radians(draws.between(0, 80)), side * 0.7 * spread)
        parts += [limb(shoulder, elbow, 1.1 * thickness, 0.9 * thickness), limb(elbow, hand, 0.9 * thickness)]
    return join(parts, blend=0.05)


def make_aeroplane(draws: Draws) -> Solid:
    """Fuselage, wings, tailplane, fin, engines; on its wheels."""
    radius, ground = draws.between(0.1, 0.16), draws.between(0.12, 0.2)
    middle = radius + ground
    span, chord = draws.between(0.75, 1.15), draws.between(0.3, 0.5)
    sweep, taper = draws.between(0.0, 0.5), draws.between(0.3, 0.8)
    root = draws.between(0.1, 0.35)
    level = middle + radius * draws.pick(-0.6, 0.0, 0.8)
    tail = draws.between(0.3, 0.5)
    fin = draws.between(0.3, 0.5)
    parts = [
        limb((0.55, middle, 0.0), (-0.35, middle, 0.0), radius),
        limb((0.55, middle, 0.0), (0.98, middle - 0.2 * radius, 0.0), radius, 0.45 * radius),
        limb((-0.35, middle, 0.0), (-1.0, middle + 0.5 * radius, 0.0), radius, 0.35 * radius),
        ball((0.55, middle + 0.75 * radius, 0.0), (0.22, 0.6 * radius, 0.6 * radius)),
        _wing(root, chord, span, sweep, taper, level, 0.07),
        _wing(-0.78, 0.26, tail, 0.5 * sweep + 0.08, 0.6, middle + 0.4 * radius, 0.05),
        prism("z", ((-0.72, middle), (-1.05, middle), (-1.12, middle + fin), (-0.94, middle + fin)), -0.03, 0.03),
    ]
    engines = draws.pick("propeller", "wings", "rear", "four")
    if engines == "propeller":
        blade = draws.between(0.22, 0.3)
        parts += [drum("x", (middle, 0.0), blade, 1.0, 1.04), limb((1.0, middle, 0.0), (1.1, middle, 0.0), 0.05)]
    for side in SIDES:
        if engines == "rear":
            place = side * (radius + 0.1)
            parts.append(limb((-0.4, middle + 0.05, place), (-0.7, middle + 0.05, place), 0.085, 0.06))
        for out in {"wings": (0.38,), "four": (0.32, 0.62)}.get(engines, ()):
            front = root - sweep * out + 0.12
            place = (level - 0.09, side * out * span)
            parts.append(limb((front, *place), (front - 0.28, *place), 0.075, 0.06))
        parts.append(limb((0.0, middle, side * 0.16), (0.0, 0.06, side * 0.2), 0.05))
    parts.append(limb((0.72, middle, 0.0), (0.72, 0.05, 0.0), 0.05))
    return join(parts, blend=0.02)


def make_truck(draws: Draws) -> Solid:
    """A high cab in front, a load behind a gap, six or more wheels."""
    wheel, width = draws.between(0.12, 0.17), draws.between(0.26, 0.34)
    floor, cab_height = 1.5 * wheel, draws.between(0.42, 0.62)
    cab, bonnet = draws.between(0.3, 0.42), draws.pick(0.0, 0.0, 0.22)
    gap, slope = draws.between(0.05, 0.1), draws.between(0.02, 0.1)
    load_height = draws.between(0.4, 0.75)
    front, back = 1.0, -1.0
    cab_back = front - bonnet - cab
    load_front = cab_back - gap
    roof = floor + cab_height
    sill = floor + 0.5 * cab_height
    cab_outline = ((cab_back, floor), (front - bonnet, floor), (front - bonnet, sill))
    parts = [
        cuboid((back, 0.9 * wheel, -0.45 * width), (front - 0.05, floor + 0.04, 0.45 * width)),
        prism("z", (*cab_outline, (front - bonnet - slope, roof), (cab_back, roof)), -width, width, rounding=0.03),
        cuboid((front - 0.04, 0.6 * wheel, -width), (front + 0.03, 1.4 * wheel, width)),
    ]
    if bonnet:
        parts.append(cuboid((cab_back, floor, -0.8 * width), (front, sill, 0.8 * width), rounding=0.05))
    load = draws.pick("box", "box", "tank", "tipper", "logs")
    top = floor + load_height
    if load == "box":
        parts.append(cuboid((back, floor, -1.08 * width), (load_front, top + 0.12, 1.08 * width)))
    elif load == "tank":
        radius = 0.5 * load_height + 0.04
        parts.append(drum("x", (floor + radius, 0.0), min(radius, 1.1 * width), back, load_front, rounding=0.06))
    elif load == "tipper":
        side = ((back - 0.06, top), (load_front, top), (load_front, floor + 0.05), (back + 0.12, floor + 0.05))
        parts += [prism("z", side, edge - 0.03, edge + 0.03) for edge in (-width, width)]
        parts.append(cuboid((load_front - 0.05, floor + 0.05, -width), (load_front, top + 0.08, width)))
        parts.append(cuboid((back + 0.05, floor, -width), (load_front, floor + 0.3 * load_height, width)))
    else:
        log = 0.42 * width
        places = ((-1.2, 1), (0, 1), (1.2, 1), (-0.6, 2.6), (0.6, 2.6))
        parts += [drum("x", (floor + up * log, out * log), log, back, load_front) for out, up in places]
    axles = (front - 0.28, *((-0.4, -0.75) if draws.pick(True, False) else (-0.62,)), -0.05)
    parts += [_wheel(axle, side, width, wheel) for axle, side in product(axles, SIDES)]
    return join(parts)


def make_car(draws: Draws) -> Solid:
    """A low body with bonnet and boot, a cabin with sloping windows, four wheels."""
    wheel, width = draws.between(0.17, 0.24), draws.between(0.34, 0.46)
    ground, belt = draws.between(0.08, 0.2), draws.between(0.36, 0.54)
    roof = belt + draws.between(0.16, 0.36)
    bonnet, boot = draws.between(0.25, 0.65), draws.between(-0.02, 0.45)
    windscreen, rear = draws.between(0.12, 0.36), draws.between(0.06, 0.3)
    nose, stern = belt - draws.between(0.02, 0.18), belt - draws.between(0.0, 0.08)
    narrowness = draws.between(0.74, 0.9)
    front, back = 1.0, -1.0
    body = ((back, ground), (front, ground), (front + 0.04, 0.6 * nose), (front - 0.06, nose), (front - bonnet, belt))
    cabin = ((back + boot, belt - 0.08), (front - bonnet, belt - 0.08), (front - bonnet - windscreen, roof))
    parts = [
        prism("z", (*body, (back + 0.02, stern)), -width, width, rounding=0.05),
        prism("z", (*cabin, (back + boot + rear, roof)), -narrowness * width, narrowness * width, rounding=0.05),
    ]
    axles = (front - draws.between(0.3, 0.4), back + draws.between(0.32, 0.42))
    parts += [_wheel(axle, side, width, wheel) for axle, side in product(axles, SIDES)]
    extra = draws.pick("none", "rack", "spoiler", "none", "spare wheel")
    if extra == "rack":
        ends = back + boot + rear + 0.06, front - bonnet - windscreen - 0.04
        parts += [
            limb((ends[0], roof + 0.05, side * 0.6 * width), (ends[1], roof + 0.05, side * 0.6 * width), 0.035)
            for side in SIDES
        ]
        parts += [
            cuboid((end - 0.03, roof - 0.03, -0.6 * width), (end + 0.03, roof + 0.06, 0.6 * width)) for end in ends
        ]
    elif extra == "spoiler":
        parts.append(cuboid((back - 0.02, stern + 0.07, -width), (back + 0.16, stern + 0.15, width)))
        parts += [
            cuboid(
                (back, stern - 0.05, side * 0.6 * width - 0.03), (back + 0.08, stern + 0.12, side * 0.6 * width + 0.03)
            )
            for side in SIDES
        ]
    elif extra == "spare wheel":
        parts.append(drum("x", (0.5 * (ground + belt) + 0.08, 0.0), 0.9 * wheel, back - 0.1, back + 0.02))
    return join(parts, blend=0.02)


MAKERS: dict[str, Callable[[Draws], Solid]] = {
    "animal": make_animal,
    "human": make_human,
    "aeroplane": make_aeroplane,
    "truck": make_truck,
    "car": make_car,
}


def _step(start: Point, length: float, angle: float) -> Point:
    """So far from a point within the plane x, y; angles run from forward to up."""
    return start[0] + length * cos(angle), start[1] + length * sin(angle), start[2]


def _reach(start: Point, length: float, swing: float, spread: float) -> Point:
    """So far from a point, hanging down, swung forward and spread to the side."""
    down = length * cos(spread)
    return start[0] + down * sin(swing), start[1] - down * cos(swing), start[2] + length * sin(spread)


def _wing(front: float, chord: float, span: float, sweep: float, taper: float, level: float, thickness: float) -> Solid:
    """Both wings in one: a thin plate, swept back and tapered."""
    halves = []
    for side in SIDES:
        tip = front - sweep
        outline = ((front, 0.0), (front - chord, 0.0), (tip - taper * chord, side * span), (tip, side * span))
        halves.append(prism("y", outline, level - thickness / 2, level + thickness / 2))
    return join(halves)


def _wheel(axle: float, side: int, width: float, radius: float) -> Solid:
    low, high = sorted((side * (width - 0.12), side * (width + 0.03)))
    return drum("z", (axle, radius), radius, low, high, rounding=0.03)
