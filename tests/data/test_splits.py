"""Protocol splits on a set with every pose of smallNORB once, and on sets that do not know their poses."""

from itertools import product

import numpy as np
import pytest

from torchcaps.data import (
    DataSet,
    ImageSet,
    novel_azimuth,
    novel_elevation,
    unseen_instances,
    validation_by_instance,
)

NAMES = ("animal", "human")
POSES = ("instance", "elevation", "azimuth", "lighting")


def views(instances, elevations=range(9), azimuths=range(0, 36, 2), lightings=range(2), **changed) -> ImageSet:
    """Each class, instance, elevation, azimuth and lighting once; a picture holds its own description."""
    rows = np.array(list(product(range(2), instances, elevations, azimuths, lightings)), dtype=np.int64)
    images = np.repeat(rows.astype(np.uint8)[:, :, None], 5, axis=2)
    factors = {name: rows[:, column].copy() for column, name in enumerate(POSES, start=1)} | changed
    return ImageSet(images=images, labels=rows[:, 0].copy(), class_names=NAMES, factors=factors)


def toys(**changed) -> DataSet:
    train, test = views((4, 6, 7, 8, 9), **changed), views((0, 1, 2, 3, 5))
    return DataSet(name="toys", train=train, test=test, origin="made", terms="none")


def described(image_set: ImageSet, name: str) -> set[int]:
    """The values of a factor; what the pictures say must agree with what the set says."""
    column = POSES.index(name) + 1
    assert np.array_equal(image_set.images[:, column, 0], image_set.factors[name])
    assert np.array_equal(image_set.images[:, 0, 0], image_set.labels)
    return set(image_set.factors[name].tolist())


def test_novel_azimuth():
    split = novel_azimuth(toys())
    assert described(split.train, "azimuth") == described(split.familiar, "azimuth") == {30, 32, 34, 0, 2, 4}
    assert described(split.novel, "azimuth") == set(range(6, 30, 2))
    assert described(split.train, "instance") == {4, 6, 7, 8, 9}
    assert described(split.novel, "instance") == described(split.familiar, "instance") == {0, 1, 2, 3, 5}
    assert len(split.train) == len(split.familiar) == len(toys().train) // 3
    assert len(split.novel) == 2 * len(split.familiar)


def test_novel_elevation():
    split = novel_elevation(toys())
    assert described(split.train, "elevation") == described(split.familiar, "elevation") == {0, 1, 2}
    assert described(split.novel, "elevation") == {3, 4, 5, 6, 7, 8}
    assert described(split.train, "instance") == {4, 6, 7, 8, 9}
    assert described(split.novel, "azimuth") == set(range(0, 36, 2))


def test_unseen_instances():
    seen, unseen = unseen_instances(views(range(10)), (0, 1, 2, 3, 5))
    assert described(seen, "instance") == {4, 6, 7, 8, 9}
    assert described(unseen, "instance") == {0, 1, 2, 3, 5}
    assert len(seen) == len(unseen)
    with pytest.raises(ValueError, match=r"none of the images show the instances \[11\]; there are 0, 1, 2"):
        unseen_instances(views(range(10)), (11,))
    with pytest.raises(ValueError, match=r"all of the images show the instances \[0, 1\]"):
        unseen_instances(views(range(2)), (1, 0))


@pytest.mark.parametrize("num_instances", [1, 2, 4])
def test_validation_by_instance(num_instances):
    whole = views((4, 6, 7, 8, 9))
    train, validation = validation_by_instance(whole, num_instances, seed=3)
    assert len(train) + len(validation) == len(whole)
    for label in (0, 1):
        kept, held_out = (set(part.factors["instance"][part.labels == label].tolist()) for part in (train, validation))
        assert len(held_out) == num_instances
        assert kept | held_out == {4, 6, 7, 8, 9}
        assert not kept & held_out
    again = validation_by_instance(whole, num_instances, seed=3)[1]
    assert np.array_equal(again.images, validation.images)
    choices = {tuple(validation_by_instance(whole, 1, seed=seed)[1].factors["instance"]) for seed in range(8)}
    assert len(choices) > 1
    with pytest.raises(ValueError, match="class 'animal' has 5 instances, so 5 cannot be held out"):
        validation_by_instance(whole, 5)


def test_instances_are_held_out_in_turn():
    whole = views((4, 6, 7, 8, 9))
    for num, expected in ((1, [{4}, {6}, {7}, {8}, {9}, {4}]), (2, [{4, 6}, {7, 8}, {9, 4}])):
        for seed, instances in enumerate(expected):
            train, validation = validation_by_instance(whole, num, seed=seed, in_turn=True)
            assert described(validation, "instance") == instances
            assert not instances & described(train, "instance")


def test_missing_labels_are_named():
    plain = ImageSet(images=np.zeros((4, 5, 5), np.uint8), labels=np.array([0, 0, 1, 1]), class_names=NAMES)
    data = DataSet(name="plain", train=plain, test=plain, origin="made", terms="none")
    for protocol, factor in ((novel_azimuth, "azimuth"), (novel_elevation, "elevation")):
        with pytest.raises(
            ValueError, match=f"{protocol.__name__} needs the {factor} .* come with nothing but classes"
        ):
            protocol(data)
    for protocol, more in ((unseen_instances, ((0,),)), (validation_by_instance, ())):
        with pytest.raises(ValueError, match=f"{protocol.__name__} needs the instance of each image"):
            protocol(plain, *more)


def test_unknown_labels_are_counted():
    num = len(views((4, 6, 7, 8, 9)))
    azimuth = np.zeros(num, np.int64)
    azimuth[:3] = -1
    with pytest.raises(ValueError, match=rf"novel_azimuth needs the azimuth .* unknown \(-1\) for 3 of {num}"):
        novel_azimuth(toys(azimuth=azimuth))
    novel_elevation(toys(azimuth=azimuth))  # needs no azimuths
    with pytest.raises(ValueError, match=rf"unknown \(-1\) for {num} of {num}"):
        validation_by_instance(views((4, 6, 7, 8, 9), instance=np.full(num, -1)))


def test_viewpoints_need_test_images_and_both_kinds():
    data = toys()
    with pytest.raises(ValueError, match="novel_azimuth needs test images, but toys has none"):
        novel_azimuth(DataSet(name="toys", train=data.train, test=None, origin="", terms=""))
    test = views((0, 1), elevations=(0, 1))
    with pytest.raises(ValueError, match="novel_elevation needs images with the elevations .*have 0, 1"):
        novel_elevation(DataSet(name="toys", train=data.train, test=test, origin="", terms=""))
