"""The whole set, made small: files of smallNORB with all poses, made once."""

import numpy as np
import pytest
import torch

from torchcaps.data import load_data, novel_azimuth
from torchcaps.data.toys import dataset
from torchcaps.data.toys import render as renderer
from torchcaps.data.toys.shapes import CATEGORIES, make_toy


@pytest.fixture(autouse=True)
def small_world(monkeypatch):
    for module in (dataset, renderer):
        monkeypatch.setattr(module, "ELEVATIONS", (30, 70))
    monkeypatch.setattr(dataset, "AZIMUTHS", (0, 180))
    monkeypatch.setattr(dataset, "INSTANCES", {"training": (4,), "testing": (0,)})
    monkeypatch.setattr(renderer, "CELL", 1 / 16)
    monkeypatch.setattr(renderer, "SUPERSAMPLES", 1)


def test_files_are_read_back_with_their_poses(tmp_path):
    told = []
    dataset.write_toys(tmp_path, seed=2, progress=lambda *done: told.append(done))
    assert told[-1] == (240, 240)
    assert len(told) == 20
    data = load_data(tmp_path)
    assert data.train.images.shape == data.test.images.shape == (120, 48, 48, 2)
    assert data.class_names == CATEGORIES
    assert np.array_equal(data.train.labels[:6], [0, 1, 2, 3, 4, 0])
    assert set(data.train.factors["instance"]) == {4}
    assert set(data.test.factors["instance"]) == {0}
    poses = np.stack([data.test.labels, *(data.test.factors[name] for name in ("elevation", "azimuth", "lighting"))], 1)
    assert len(np.unique(poses, axis=0)) == 120
    assert set(poses[:, 1]) == {0, 1}
    assert set(poses[:, 2]) == {0, 18}
    assert set(poses[:, 3]) == set(range(6))
    # one picture, made by hand
    (place,) = np.flatnonzero((poses == (3, 1, 18, 2)).all(1))
    aims = dataset.draw_aims("truck", 0, 2)[1]
    assert 0 < aims.abs().max() <= dataset.AIM
    views = renderer.render(renderer.bake(make_toy("truck", 0, 2)), 180, size=48, aims=aims)
    assert np.array_equal(data.test.images[place].transpose(2, 0, 1), views[1, 2].numpy())
    assert len(novel_azimuth(data).train) == 60


def test_toys_are_made_once_and_the_same_from_the_same_seed(tmp_path):
    dataset.write_toys(tmp_path / "a")
    files = {path.name: path.read_bytes() for path in sorted((tmp_path / "a").iterdir())}
    assert len(files) == 7
    dataset.write_toys(tmp_path / "a", progress=lambda *done: pytest.fail("made twice"))
    dataset.write_toys(tmp_path / "b")
    assert files == {path.name: path.read_bytes() for path in sorted((tmp_path / "b").iterdir())}
    dataset.write_toys(tmp_path / "a", seed=1)
    changed = {path.name: path.read_bytes() for path in sorted((tmp_path / "a").iterdir())}
    assert changed.keys() == files.keys()
    assert changed["toys-training-48x48-dat.mat"] != files["toys-training-48x48-dat.mat"]


def test_an_interrupted_set_is_made_anew(tmp_path):
    def stop(num_done: int, num: int) -> None:
        if num_done > num / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.write_toys(tmp_path, progress=stop)
    told = []
    dataset.write_toys(tmp_path, progress=lambda *done: told.append(done))
    assert told[-1] == (240, 240)
    assert len(load_data(tmp_path).test) == 120


def test_sizes_and_seeds_are_checked(tmp_path):
    with pytest.raises(ValueError, match="size must be 48 or 96, got 64"):
        dataset.write_toys(tmp_path, size=64)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        dataset.write_toys(tmp_path, seed=-1)


def test_full_poses_are_those_of_smallnorb(monkeypatch):
    monkeypatch.undo()
    table = dataset.poses((4, 6, 7, 8, 9))
    assert table.shape == (24_300, 5)
    assert len(np.unique(table, axis=0)) == 24_300
    assert table.max(0).tolist() == [4, 9, 8, 34, 5]
    assert torch.tensor(table[:, 3] % 2).sum() == 0
