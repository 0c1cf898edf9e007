"""The plane of the votes lies along their main directions."""

import numpy as np
import pytest

from torchcaps.inspection.plane import main_directions


def test_main_directions_are_those_of_most_variance():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(2000, 3)) * [1.0, 5.0, 0.1] + 7.0
    mean, directions, variance = main_directions(points)
    assert np.allclose(mean, points.mean(0))
    assert np.allclose(np.abs(directions), [[0, 1, 0], [1, 0, 0]], atol=0.05)
    assert variance == pytest.approx([25 / 26.01, 1 / 26.01], abs=0.02)
    assert main_directions(points[:, :1])[1].tolist()[1] == [0.0]
