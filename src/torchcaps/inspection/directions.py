"""What the directions of a class's pose change in the picture, named by the property they change most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from torchcaps.capsules import Capsules
from torchcaps.checks import check_choice
from torchcaps.inspection.probes import principal_axes, varying
from torchcaps.inspection.properties import PROPERTIES, image_properties
from torchcaps.models import Model
from torchcaps.nn.decoder import Decoder

RANGE = (2.5, 97.5)  # per cent of real things lie between the ends of a sweep, but for these
LEAST_EFFECT = 0.5  # standard deviations among real things; what changes no property by more is a matter of shape
SHAPE = "shape"
KINDS = ("told", "principal", "entries")  # of directions
NUM_STEPS, MOST_ROWS = 9, 16  # of pictures along directions
# A direction is named by these: the others follow from them, or from how the thing was centred.
NAMED = ("slant", "thickness", "width", "height", "row", "column", "holes")


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A straight line through the mean pose of a class, as far as real things lie along it.

    Attributes:
        name: property that changes most along it, else "shape".
        vector: (D,) of length 1, turned so that the property grows.
        low, high: ends of the sweep, from the mean.
        effects: (8,) change of each property of the decoded picture from low to high, in standard deviations of it
            among real things; NaN where these do not vary.
        change: mean squared difference, summed over pixels, between neighbouring pictures of a sweep of three.
    """

    name: str
    vector: np.ndarray
    low: float
    high: float
    effects: np.ndarray
    change: float


@dataclass(frozen=True, kw_only=True)
class PoseSpace:
    """Where the poses of a class lie, and what its directions mean; those that change most come first.

    Attributes:
        class_index: which class.
        mean: (D,) pose.
        length: mean length of the poses, which is longer than their mean.
        told: for each property that they change, how poses differ on average when it does.
        principal: in which the poses vary most.
        entries: one entry of the pose at a time; `numbers` says which.
        numbers: of the entries, from 0.
    """

    class_index: int
    mean: np.ndarray
    length: float
    told: tuple[Direction, ...]
    principal: tuple[Direction, ...]
    entries: tuple[Direction, ...]
    numbers: tuple[int, ...]


class Sweeps(NamedTuple):
    """Pictures along directions of a class's poses.

    Attributes:
        kind: "told", "principal" or "entries".
        label: name of the class.
        directions: R of them.
        names: of the directions, with the number of an entry where it is one.

    Shapes:
        decoded: (R, S, C, H, W)
    """

    kind: str
    label: str
    directions: Sequence[Direction]
    names: Sequence[str]
    decoded: np.ndarray


def pose_space(model: Model, class_index: int, poses: np.ndarray, properties: np.ndarray) -> PoseSpace:
    """Directions of a class's poses and what they change.

    Args:
        model: with a decoder.
        class_index: of the class.
        poses: that real things of the class have.
        properties: of these things, see `image_properties`.

    Shapes:
        poses: (n, D); properties: (n, 8)
    """
    decoder = decoder_of(model)
    if len(poses) < 2:
        raise ValueError(f"directions need at least 2 images of class {model.labels[class_index]}, got {len(poses)}")
    mean = poses.mean(0)
    axes, _ = principal_axes(poses - mean)
    deviations = varying(properties)
    principal = [_direction(decoder, class_index, mean, axis, poses, deviations) for axis in axes]
    entries = [_direction(decoder, class_index, mean, axis, poses, deviations) for axis in np.eye(len(mean))]
    names, vectors = property_vectors(poses - mean, properties)
    told = [
        _direction(decoder, class_index, mean, vector, poses, deviations, name=name)
        for name, vector in zip(names, vectors, strict=True)
    ]
    order = np.argsort([-direction.change for direction in entries], kind="stable").tolist()
    return PoseSpace(
        class_index=class_index,
        mean=mean,
        length=float(np.linalg.norm(poses, axis=1).mean()),
        told=tuple(one for one in told if one.effects[PROPERTIES.index(one.name)] >= LEAST_EFFECT),
        principal=tuple(sorted(principal, key=lambda direction: -direction.change)),
        entries=tuple(entries[number] for number in order),
        numbers=tuple(order),
    )


def property_vectors(centred: np.ndarray, properties: np.ndarray) -> tuple[list[str], np.ndarray]:
    """How poses change on average with each property of NAMED that varies: names, and unit vectors (names, D).

    Shapes:
        centred: (n, D) poses less their mean; properties: (n, 8)
    """
    deviations = varying(properties)
    names = [name for name in NAMED if np.isfinite(deviations[PROPERTIES.index(name)])]
    columns = [PROPERTIES.index(name) for name in names]
    vectors = (properties[:, columns] - properties[:, columns].mean(0)).T @ centred
    return names, vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)


def _direction(
    decoder: Decoder,
    class_index: int,
    mean: np.ndarray,
    vector: np.ndarray,
    poses: np.ndarray,
    deviations: np.ndarray,
    name: str | None = None,
) -> Direction:
    low, high = np.percentile((poses - mean) @ vector, RANGE)
    pictures = decode_poses(decoder, class_index, mean + np.outer([low, 0.0, high], vector))
    seen = image_properties(pictures[:, 0])
    effects = (seen[2] - seen[0]) / deviations
    named = np.array([effects[PROPERTIES.index(name)] for name in NAMED])
    sizes = np.nan_to_num(np.abs(named))
    best = int(sizes.argmax()) if name is None else NAMED.index(name)
    has_name = name is not None or sizes[best] >= LEAST_EFFECT
    sign = -1.0 if has_name and named[best] < 0 else 1.0
    ends = (low, high) if sign > 0 else (-high, -low)
    return Direction(
        name=NAMED[best] if has_name else SHAPE,
        vector=sign * vector,
        low=float(ends[0]),
        high=float(ends[1]),
        effects=sign * effects,
        change=float((np.diff(pictures, axis=0) ** 2).sum((1, 2, 3)).mean()),
    )


def sweep(model: Model, space: PoseSpace, direction: Direction, num_steps: int, *, pose: np.ndarray | None = None):
    """Pictures decoded along a direction, from its low to its high end: (num_steps, C, H, W).

    Args:
        model: with a decoder.
        space: of the class.
        direction: one of it.
        num_steps: at least 2.
        pose: all else stays as in this pose; by default as in the mean.
    """
    start = space.mean if pose is None else pose
    along = (start - space.mean) @ direction.vector
    places = np.linspace(direction.low, direction.high, num_steps) - along
    return decode_poses(decoder_of(model), space.class_index, start + np.outer(places, direction.vector))


def sweeps(
    model: Model,
    space: PoseSpace,
    *,
    pose: np.ndarray | None = None,
    kind: str = "principal",
    num_steps: int = NUM_STEPS,
    most: int = MOST_ROWS,
) -> Sweeps:
    """Pictures decoded along each direction of a class's poses, within the range of real things.

    Args:
        model: with a decoder.
        space: of the class.
        pose: all else stays as in this pose; by default as in the mean.
        kind: "told" for the directions of properties, "principal" for those in which poses vary most, "entries" for
            single entries of the pose.
        num_steps: pictures of each direction.
        most: directions.
    """
    label, chosen = model.labels[space.class_index], getattr(space, check_choice("kind", kind, KINDS))[:most]
    if not chosen:
        raise ValueError(f"no property of class {label} changes along its directions")
    numbers = [f"entry {number + 1}" for number in space.numbers] if kind == "entries" else [""] * len(chosen)
    return Sweeps(
        kind=kind,
        label=label,
        directions=chosen,
        names=[" ".join(filter(None, [number, one.name])) for number, one in zip(numbers, chosen, strict=False)],
        decoded=np.stack([sweep(model, space, direction, num_steps, pose=pose) for direction in chosen]),
    )


@torch.inference_mode()
def decode_poses(decoder: Decoder, class_index: int, poses: np.ndarray) -> np.ndarray:
    """Pictures of poses of one class.

    Shapes:
        poses: (n, D) -> (n, C, H, W)
    """
    like = next(decoder.parameters())
    poses_nJD = like.new_zeros(len(poses), decoder.in_capsules, decoder.in_size)
    poses_nJD[:, class_index] = torch.as_tensor(np.asarray(poses)).to(like)
    classes = torch.full((len(poses),), class_index, device=like.device)
    return decoder(Capsules.from_poses(poses_nJD), classes).cpu().numpy()


def morph(model: Model, class_index: int, first: Sequence[float], last: Sequence[float], num_steps: int) -> np.ndarray:
    """Pictures on the straight line between two poses of one class: (num_steps, C, H, W)."""
    shares = np.linspace(0, 1, num_steps)[:, None]
    poses = (1 - shares) * np.asarray(first)[None] + shares * np.asarray(last)[None]
    return decode_poses(decoder_of(model), class_index, poses)


def decoder_of(model: Model) -> Decoder:
    """The decoder of a model that has one."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        raise ValueError(f"this {model.name} has no decoder; train capsnet or capsnet-small with reconstruct=True")
    return decoder
