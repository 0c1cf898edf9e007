"""Toys differ from each other, stand on the floor and have the proportions of what they are."""

import numpy as np
import pytest
import torch

from torchcaps.data.toys.render import bake
from torchcaps.data.toys.shapes import CATEGORIES, NUM_INSTANCES, Draws, make_toy


def extents(category: str, instance: int, seed: int = 0) -> np.ndarray:
    solid = make_toy(category, instance, seed).solid
    return np.subtract(solid.high, solid.low)


def test_ten_instances_share_out_every_range():
    for question in range(5):
        values = []
        for instance in range(NUM_INSTANCES):
            draws = Draws(3, 1, instance)
            values.append([draws.between(2.0, 3.0) for _ in range(question + 1)][-1])
        assert sorted(int(10 * (value - 2)) for value in values) == list(range(10))
    picked = [Draws(0, 0, instance).pick("a", "b") for instance in range(NUM_INSTANCES)]
    assert picked.count("a") == 5


@pytest.mark.parametrize("category", CATEGORIES)
def test_proportions(category):
    for instance in range(NUM_INSTANCES):
        length, height, width = extents(category, instance)
        if category == "human":
            assert height > length
            assert height > 0.9 * width
        elif category == "aeroplane":
            assert length > 1.5
            assert width > 1.4
            assert height < 0.5 * length
        else:
            assert length > height
            assert length > 1.8 * width
        assert not np.array_equal(extents(category, instance), extents(category, (instance + 1) % NUM_INSTANCES))
        assert not np.array_equal(extents(category, instance), extents(category, instance, seed=1))


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_toy_touches_the_floor_and_is_in_one_piece(category, seed, monkeypatch):
    monkeypatch.setattr("torchcaps.data.toys.render.CELL", 1 / 24)
    for instance in range(0, NUM_INSTANCES, 3):
        field = bake(make_toy(category, instance, seed))
        solid = field.distances[0, 0] < 1 / 48
        heights = torch.linspace(float(field.low[1]), float(field.high[1]), solid.shape[1])
        assert heights[solid.any(2).any(0)].amin().abs() < 2 / 24
        assert num_pieces(solid.numpy()) == 1


def num_pieces(solid: np.ndarray) -> int:
    """Number of connected sets of cells; neighbours share a face, an edge or a corner."""
    from scipy import ndimage

    return ndimage.label(solid, structure=np.ones((3, 3, 3)))[1]
