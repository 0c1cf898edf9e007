"""A toy on a turntable: the side it is shown from, and what a linear map reads from the pose of its class."""

from collections.abc import Callable
from functools import cache

import numpy as np

from torchcaps.data.toys.dataset import INSTANCES
from torchcaps.data.toys.render import AZIMUTHS, bake, render
from torchcaps.data.toys.shapes import CATEGORIES, make_toy
from torchcaps.explorer.results import Side, Turned
from torchcaps.inspection import read_features
from torchcaps.inspection.probes import fit_map
from torchcaps.inspection.views import azimuth_of, degrees_between
from torchcaps.models import Model
from torchcaps.service.images import raw_picture

PER_CATEGORY = 4  # toys of the test part that are shown, as many as are embedded
TOYS = tuple((category, instance) for category in CATEGORIES for instance in INSTANCES["testing"][:PER_CATEGORY])
SEED, SIZE = 0, 48
ELEVATION, LIGHTING = 45, 5  # degrees; all four lamps
FITTED_SIDES = tuple(range(0, 360, 30))  # fewer than are shown: every side of five toys is rendered before the answer

Reader = Callable[[np.ndarray], np.ndarray]


@cache
def turntable(category: str, instance: int, azimuths: tuple[int, ...]) -> np.ndarray:
    """A toy from so many sides: uint8 (n, 48, 48, 2)."""
    field = bake(make_toy(category, instance, SEED))
    sides = [render(field, azimuth, size=SIZE, elevations=(ELEVATION,))[0, LIGHTING] for azimuth in azimuths]
    return np.stack([side_CHW.permute(1, 2, 0).numpy() for side_CHW in sides])


def sides_of(model: Model, category: str, instance: int, azimuths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of some sides of a toy as the model takes them, and the poses of its class: (n, h, w, c), (n, D)."""
    wanted = model.preprocessing.channels  # of two cameras a model may have one
    pictures = turntable(category, instance, azimuths)[..., :wanted]
    images = np.stack([raw_picture(picture, model.preprocessing) for picture in pictures])
    return images, read_features(model, images, np.full(len(images), model.labels.index(category)))


def fit_reader(model: Model, category: str) -> Reader:
    """The linear map from poses of a category to sine and cosine, fitted to its five training toys."""
    toys = INSTANCES["training"]
    poses = np.concatenate([sides_of(model, category, instance, FITTED_SIDES)[1] for instance in toys])
    angles = np.radians(np.tile(FITTED_SIDES, len(toys)))
    return fit_map(poses, np.column_stack([np.sin(angles), np.cos(angles)]))


def turn(name: str, model: Model, toy: int, read: Reader) -> Turned:
    """A toy of the test part from all sides, and the sides that are read from its poses.

    Args:
        name: of the model.
        model: of toys, with class capsules.
        toy: its number among TOYS.
        read: what `fit_reader` gave for its category.
    """
    category, instance = TOYS[toy]
    images, poses = sides_of(model, category, instance, AZIMUTHS)
    found = azimuth_of(read(poses))
    return Turned(
        model=name,
        toy=toy,
        label=category,
        sides=[
            Side(azimuth=azimuth, found=round(float(seen), 1), image=image)
            for azimuth, seen, image in zip(AZIMUTHS, found, images, strict=True)
        ],
        degrees_off=round(float(degrees_between(found, np.array(AZIMUTHS, dtype=float)).mean()), 1),
    )
