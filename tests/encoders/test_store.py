"""Vectors on disk: found again, damaged files left aside, bounded."""

import os

import numpy as np
import pytest

from torchcaps.encoders.store import VectorStore, key_of
from torchcaps.inputs.tokens import TextNotice


def some(num: int, seed: int = 0) -> tuple[list[bytes], list[np.ndarray]]:
    draw = np.random.default_rng(seed)
    keys = [key_of(draw.integers(0, 1000, 5)) for _ in range(num)]
    return keys, [draw.standard_normal((3 + index, 4)).astype(np.float16) for index in range(num)]


def test_what_was_added_is_found_by_others(tmp_path):
    keys, vectors = some(4)
    store, other = VectorStore(tmp_path / "a"), VectorStore(tmp_path / "a")
    store.add(keys, vectors)
    assert keys[0] not in other
    assert other.get(keys[0]) is None
    other.scan()
    for each in (store, other, VectorStore(tmp_path / "a")):
        for key, expected in zip(keys, vectors, strict=True):
            assert np.array_equal(each.get(key), expected)


def test_damaged_blocks_are_left_aside(tmp_path):
    keys, vectors = some(4)
    VectorStore(tmp_path).add(keys, vectors)
    (path,) = tmp_path.glob("*.safetensors")
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-3]):
        path.write_bytes(damaged)
        assert VectorStore(tmp_path).get(keys[0]) is None


def test_the_oldest_go_first(tmp_path, monkeypatch):
    store = VectorStore(tmp_path / "a")
    for number in range(3):
        store.add(*some(8, number))
        for path in store.folder.glob("*.safetensors"):
            os.utime(path, (path.stat().st_mtime - 10,) * 2)
    size = path.stat().st_size
    monkeypatch.setenv("TORCHCAPS_VECTORS_GB", str(2.4 * size / 1e9))
    store.add(*some(8, 3))
    fresh = VectorStore(tmp_path / "a")
    assert [some(8, number)[0][0] in fresh for number in range(4)] == [False, False, True, True]
    assert store.get(some(8, 0)[0][0]) is not None  # who has a block open can go on reading it
    monkeypatch.setenv("TORCHCAPS_VECTORS_GB", "0")
    store.add(*some(8, 4))
    assert some(8, 4)[0][0] not in store


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(TextNotice, match="are not kept, and computed anew"):
        VectorStore(tmp_path / "file" / "a").add(*some(2))
