"""Directions of a trained tiny network differ, are named after what they change, and stay among real things."""

import numpy as np
import pytest
import torch

from support.drawings import ring, stripe
from torchcaps.capsules import Capsules
from torchcaps.data import ImageSet
from torchcaps.inspection import (
    PROPERTIES,
    decode_poses,
    image_properties,
    morph,
    pose_space,
    probe_poses,
    read_features,
    sweep,
)
from torchcaps.inspection.directions import LEAST_EFFECT, NAMED, SHAPE
from torchcaps.inspection.probes import seen_properties
from torchcaps.models import create_model
from torchcaps.training import TrainingConfig, fit

SIZE = 22


@pytest.fixture(scope="module")
def strokes() -> ImageSet:
    """Strokes and rings of any slant and thickness."""
    numbers = np.random.default_rng(0).uniform((-0.5, 2.0), (0.5, 4.5), (600, 2))
    images = [
        ring(slant=slant, thickness=thickness, radius=5.5, size=SIZE)
        if index % 2
        else stripe(slant=slant, thickness=thickness, height=14, size=SIZE)
        for index, (slant, thickness) in enumerate(numbers)
    ]
    raw = (255 * np.stack(images)).round().astype(np.uint8)
    return ImageSet(images=raw, labels=np.arange(600) % 2, class_names=("stroke", "ring"))


@pytest.fixture(scope="module")
def trained(strokes):
    torch.manual_seed(0)
    model = create_model(
        "capsnet-small", image_shape=(1, SIZE, SIZE), num_classes=2, class_size=6, decoder_hidden=(64, 128)
    )
    settings = {"batch_size": 16, "learning_rate": 5e-3, "reconstruction_weight": 0.02}
    fit(model, strokes.subset(np.arange(400)), None, TrainingConfig(epochs=20, **settings))
    return model.eval()


@pytest.fixture(scope="module")
def spaces(trained, strokes):
    held_out = strokes.subset(np.arange(400, 600))
    properties = seen_properties(trained, held_out.images)
    poses = read_features(trained, held_out.images, held_out.labels)
    return [
        pose_space(trained, index, poses[held_out.labels == index], properties[held_out.labels == index])
        for index in (0, 1)
    ]


def test_poses_tell_slant_and_thickness_of_new_drawings(trained, strokes):
    held_out = strokes.subset(np.arange(400, 600))
    probes = probe_poses(trained, held_out.images, held_out.labels)
    assert probes.mean("slant", "thickness") > 0.8
    untrained = create_model("capsnet-small", image_shape=(1, SIZE, SIZE), num_classes=2, class_size=6)
    assert probes.mean("slant", "thickness") > probe_poses(untrained, held_out.images, held_out.labels).mean(
        "slant", "thickness"
    )


def test_reconstructions_are_of_the_drawing_not_of_its_class(trained, strokes):
    held_out = strokes.subset(np.arange(400, 600))
    inputs = trained.preprocessing(held_out.images)
    with torch.inference_mode():
        drawn = trained(inputs).reconstruction
    labels = torch.from_numpy(held_out.labels)
    means = torch.stack([inputs[labels == index].mean(0) for index in (0, 1)])[labels]
    assert (drawn - inputs).square().sum() < 0.5 * (means - inputs).square().sum()


def test_directions_differ(trained, spaces):
    """They are at right angles, and what they change in the picture differs too."""
    for space in spaces:
        vectors = np.stack([direction.vector for direction in space.principal])
        assert np.allclose(vectors @ vectors.T, np.eye(len(vectors)), atol=1e-6)
        first, second = (
            (ends := sweep(trained, space, direction, 2))[1] - ends[0] for direction in space.principal[:2]
        )
        cosine = (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())
        assert abs(cosine) < 0.8
        assert min(direction.change for direction in space.principal[:2]) > 1


def test_directions_of_properties_change_their_property_most(trained, spaces):
    for space in spaces:
        names = [direction.name for direction in space.told]
        assert names[:2] == ["slant", "thickness"]
        for direction in space.told[:2]:
            slant, thickness = (direction.effects[PROPERTIES.index(name)] for name in ("slant", "thickness"))
            mine, other = (slant, thickness) if direction.name == "slant" else (thickness, slant)
            assert mine > 1.5
            assert abs(other) < 0.5 * mine


def test_directions_are_named_after_what_they_change(spaces):
    assert {"slant", "thickness"} <= {direction.name for space in spaces for direction in space.principal[:3]}
    for direction in (found for space in spaces for found in (*space.principal, *space.entries)):
        effects = np.array([direction.effects[PROPERTIES.index(name)] for name in NAMED])
        if direction.name == SHAPE:
            assert np.nan_to_num(np.abs(effects)).max() < LEAST_EFFECT
        else:
            assert effects[NAMED.index(direction.name)] == np.nan_to_num(np.abs(effects)).max()


def test_the_named_property_grows_along_the_sweep(trained, spaces):
    for space in spaces:
        direction = next(found for found in space.principal if found.name == "slant")
        slants = image_properties(sweep(trained, space, direction, 7)[:, 0])[:, PROPERTIES.index("slant")]
        assert (np.diff(slants) > 0).all()


def test_what_changes_most_comes_first_and_stays_among_real_things(trained, spaces, strokes):
    held_out = strokes.subset(np.arange(400, 600))
    poses = read_features(trained, held_out.images, held_out.labels)
    for space in spaces:
        own = poses[held_out.labels == space.class_index]
        for directions in (space.principal, space.entries):
            changes = [direction.change for direction in directions]
            assert changes == sorted(changes, reverse=True)
            for direction in directions:
                along = (own - space.mean) @ direction.vector
                assert along.min() <= direction.low < direction.high <= along.max()
        assert sorted(space.numbers) == list(range(6))
        assert all(np.abs(e.vector[n]) == 1 for e, n in zip(space.entries, space.numbers, strict=True))


def test_sweeps_and_morphs_are_what_the_decoder_draws(trained, spaces, strokes):
    space = spaces[0]
    direction, pose = space.principal[0], space.mean + 0.01
    pictures = sweep(trained, space, direction, 3, pose=pose)
    moved = pose + (direction.high - (pose - space.mean) @ direction.vector) * direction.vector
    poses = torch.zeros(1, 2, 6)
    poses[0, 0] = torch.from_numpy(moved)
    with torch.inference_mode():
        expected = trained.decoder(Capsules.from_poses(poses), torch.tensor([0]))[0]
    assert np.allclose(pictures[-1], expected, atol=1e-5)
    between = morph(trained, 0, space.mean, pose, 3)
    assert np.allclose(between[1], decode_poses(trained.decoder, 0, (space.mean + 0.005)[None])[0], atol=1e-5)


def test_one_image_has_no_directions(trained):
    with pytest.raises(ValueError, match="at least 2 images of class 1"):
        pose_space(trained, 1, np.zeros((1, 6)), np.zeros((1, 8)))
