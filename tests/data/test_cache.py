"""Where arrays are cached, and what happens when the cache cannot be written."""

import os
from pathlib import Path

import numpy as np
import pytest

from torchcaps.data.cache import cache_folder, cached_array

PIECES = [np.full((2, 3), 1, np.uint8), np.full((1, 3), 2, np.uint8)]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "source"
    path.write_text("something")
    return path


def test_the_place_of_the_cache(monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", "~/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path.home() / "mine"
    monkeypatch.delenv("TORCHCAPS_CACHE")
    assert cache_folder() == Path("/xdg/torchcaps")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "torchcaps"


def test_made_once_and_mapped(source):
    calls = []
    for _ in range(2):
        array = cached_array("thing", [source], (3, 3), lambda: calls.append(1) or PIECES)
        assert np.array_equal(array, np.concatenate(PIECES))
        assert array.flags.writeable
    assert calls == [1]


def test_different_sizes_do_not_meet(source):
    cached_array("thing", [source], (3, 3), lambda: PIECES)
    assert cached_array("thing", [source], (1, 3), lambda: PIECES[1:]).tolist() == [[2, 2, 2]]
    assert len(list((source.parent / "cache").glob("*.npy"))) == 2


def test_an_interruption_leaves_nothing(source):
    def stop():
        yield PIECES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_array("thing", [source], (3, 3), stop)
    assert not list((source.parent / "cache").iterdir())


def test_what_killed_processes_left_is_taken_away(source):
    cache = source.parent / "cache"
    cache.mkdir()
    left, busy = cache / ".tmp-123-thing-a-b.npy", cache / ".tmp-124-thing-a-b.npy"
    for path in (left, busy):
        path.touch()
    os.utime(left, (0, 0))
    cached_array("thing", [source], (3, 3), lambda: PIECES)
    assert not left.exists()
    assert busy.exists()


def test_a_full_disk_means_memory(source, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("torchcaps.data.cache._write", full)
    assert np.array_equal(cached_array("thing", [source], (3, 3), lambda: PIECES), np.concatenate(PIECES))
    with pytest.raises(ValueError, match=r"source declares .* GB of images, more than"):
        cached_array("thing", [source], (2**40, 3), lambda: PIECES)


def test_a_source_that_cannot_be_read_says_so(source):
    def unreadable():
        raise PermissionError("source is locked")

    with pytest.raises(PermissionError, match="source is locked"):
        cached_array("thing", [source], (3, 3), unreadable)
