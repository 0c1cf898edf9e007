"""Protocol splits of sets whose images say which instance they show, and from where.

The novel-viewpoint protocols are those of table 2 of G. E. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM
routing" (ICLR 2018): train on some viewpoints of the training instances, test on the others of the test instances.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from torchcaps.checks import check_count
from torchcaps.data.sets import DataSet, ImageSet

# As smallNORB numbers them: azimuths in tens of degrees, elevations from 0 (30 degrees) to 8 (70 degrees).
FAMILIAR_AZIMUTHS = (30, 32, 34, 0, 2, 4)
FAMILIAR_ELEVATIONS = (0, 1, 2)
UNKNOWN = -1


class Viewpoints(NamedTuple):
    """A novel-viewpoint protocol.

    Attributes:
        train: training images from familiar viewpoints; hold out validation images with `validation_by_instance`.
        familiar: test images from the same viewpoints.
        novel: test images from all other viewpoints.
    """

    train: ImageSet
    familiar: ImageSet
    novel: ImageSet


def novel_azimuth(data: DataSet) -> Viewpoints:
    """Train on the azimuths 300, 320, 340, 0, 20, 40 degrees, test on 60 to 280.

    Raises:
        ValueError: if the azimuth of an image is unknown, or there are no test images.
    """
    return _by_viewpoint(data, "azimuth", FAMILIAR_AZIMUTHS)


def novel_elevation(data: DataSet) -> Viewpoints:
    """Train on the three smallest elevations, 30 to 40 degrees, test on the six larger ones.

    Raises:
        ValueError: if the elevation of an image is unknown, or there are no test images.
    """
    return _by_viewpoint(data, "elevation", FAMILIAR_ELEVATIONS)


def unseen_instances(image_set: ImageSet, instances: Collection[int]) -> tuple[ImageSet, ImageSet]:
    """Images of all other instances, and images of these; an instance is numbered within its class.

    smallNORB's own test images show the instances 0, 1, 2, 3, 5 of each class, its training images 4, 6, 7, 8, 9.

    Args:
        image_set: images whose instances are known.
        instances: those to keep unseen.

    Raises:
        ValueError: if the instance of an image is unknown, or one side would be empty.
    """
    instance_N = _known("unseen_instances", image_set, "instance")
    is_unseen_N = np.isin(instance_N, list(instances))
    if is_unseen_N.all() or not is_unseen_N.any():
        which = "all" if is_unseen_N.any() else "none"
        there = ", ".join(map(str, np.unique(instance_N)))
        raise ValueError(f"{which} of the images show the instances {sorted(instances)}; there are {there}")
    return _divide(image_set, is_unseen_N)


def validation_by_instance(
    image_set: ImageSet, num_instances: int = 1, *, seed: int = 0, in_turn: bool = False
) -> tuple[ImageSet, ImageSet]:
    """Hold out whole instances for validation: the validation images show objects that training never sees.

    Args:
        image_set: training images whose instances are known.
        num_instances: instances of each class that become validation images.
        seed: the same seed chooses the same instances.
        in_turn: instances are held out in their order, so that seeds 0, 1, ... hold out each of them once; otherwise
            they are drawn.

    Returns:
        The training part and the validation part.

    Raises:
        ValueError: if the instance of an image is unknown, or a class has too few instances.
    """
    check_count("num_instances", num_instances)
    instance_N = _known("validation_by_instance", image_set, "instance")
    if image_set.is_multi_label:
        raise ValueError("validation_by_instance needs one class per image; use split_validation")
    generator = np.random.default_rng(seed)
    is_held_out_N = np.zeros(len(image_set), dtype=bool)
    for label in np.unique(image_set.labels):
        is_of_class_N = image_set.labels == label
        instances = np.unique(instance_N[is_of_class_N])
        if len(instances) <= num_instances:
            raise ValueError(
                f"class {image_set.class_names[label]!r} has {len(instances)} instances, so {num_instances} cannot be "
                "held out and leave one to train on; hold out fewer"
            )
        chosen = np.roll(instances, -seed * num_instances) if in_turn else generator.permutation(instances)
        chosen = chosen[:num_instances]
        is_held_out_N |= is_of_class_N & np.isin(instance_N, chosen)
    return _divide(image_set, is_held_out_N)


def _by_viewpoint(data: DataSet, factor: str, familiar_values: tuple[int, ...]) -> Viewpoints:
    protocol = f"novel_{factor}"
    if data.test is None:
        raise ValueError(f"{protocol} needs test images, but {data.name} has none")
    is_novel_of_train = ~np.isin(_known(protocol, data.train, factor), familiar_values)
    is_novel_of_test = ~np.isin(_known(protocol, data.test, factor), familiar_values)
    if is_novel_of_train.all() or is_novel_of_test.all() or not is_novel_of_test.any():
        there = ", ".join(map(str, np.unique(data.test.factors[factor])))
        raise ValueError(
            f"{protocol} needs images with the {factor}s {familiar_values} in training and test, and test images with "
            f"others; the test images of {data.name} have {there}"
        )
    train = data.train.subset(np.flatnonzero(~is_novel_of_train))
    return Viewpoints(train, *_divide(data.test, is_novel_of_test))


def _known(protocol: str, image_set: ImageSet, factor: str) -> np.ndarray:
    """The values of a factor, if every image has one."""
    values_N = image_set.factors.get(factor)
    if values_N is None:
        there = ", ".join(image_set.factors) or "nothing but classes"
        raise ValueError(f"{protocol} needs the {factor} of each image, but these images come with {there}")
    num_unknown = int((values_N == UNKNOWN).sum())
    if num_unknown:
        raise ValueError(
            f"{protocol} needs the {factor} of each image, but it is unknown (-1) for {num_unknown} of {len(values_N)}"
        )
    return values_N


def _divide(image_set: ImageSet, is_second_N: np.ndarray) -> tuple[ImageSet, ImageSet]:
    return image_set.subset(np.flatnonzero(~is_second_N)), image_set.subset(np.flatnonzero(is_second_N))
