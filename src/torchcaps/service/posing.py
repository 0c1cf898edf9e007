"""What the directions of a class's poses mean, from real things of the class."""

import numpy as np

from torchcaps.data import ImageSet
from torchcaps.inspection import Direction, pose_space, read_features
from torchcaps.inspection.probes import seen_properties
from torchcaps.models import Model
from torchcaps.service.held_out import held_out
from torchcaps.service.images import raw_picture
from torchcaps.service.refusals import Refusal
from torchcaps.service.results import DirectionFound, Member, PoseDirections

MOST_THINGS = 400  # of a class that are looked at
NUM_MEMBERS = 8  # of them that are shown
NUM_PRINCIPAL = 8


def directions(name: str, model: Model, class_index: int) -> PoseDirections:
    """Principal directions and entries of the poses of a class, named by what they change, and some things of it.

    Args:
        name: of the model.
        model: with a decoder.
        class_index: of the class.
    """
    part = held_out(model)
    if not isinstance(part, ImageSet) or part.is_multi_label:
        raise Refusal(f"there are no test images for {name} here; directions need real things of a class")
    chosen = np.flatnonzero(part.labels == class_index)[:MOST_THINGS]
    if len(chosen) < 2:
        raise Refusal(f"directions need at least 2 test images of class {model.labels[class_index]}, got {len(chosen)}")
    images = np.asarray(part.images[chosen])
    poses = read_features(model, images, part.labels[chosen])
    space = pose_space(model, class_index, poses, seen_properties(model, images))
    return PoseDirections(
        model=name,
        class_index=class_index,
        label=model.labels[class_index],
        mean=space.mean,
        told=[_found(direction) for direction in space.told],
        principal=[_found(direction) for direction in space.principal[:NUM_PRINCIPAL]],
        entries=[_found(one, number) for one, number in zip(space.entries, space.numbers, strict=True)],
        members=[
            Member(image=raw_picture(image, model.preprocessing), pose=pose)
            for image, pose in zip(images[:NUM_MEMBERS], poses, strict=False)
        ],
    )


def _found(direction: Direction, number: int | None = None) -> DirectionFound:
    return DirectionFound(
        name=direction.name,
        number=number,
        vector=direction.vector,
        low=round(direction.low, 6),
        high=round(direction.high, 6),
        change=round(direction.change, 3),
    )
