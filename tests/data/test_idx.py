"""The idx format: what is read, and what each kind of damage says."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.data.idx import read_idx


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def raw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(num: int, num_classes: int = 3) -> np.ndarray:
    return (np.arange(num) % num_classes).astype(np.uint8)


def write_set(folder, *, num_train=6, num_test=4, joint="-", compressed=False, train_labels=None, test_labels=None):
    """The four files of an idx set."""
    for part, num, part_labels in (("train", num_train, train_labels), ("t10k", num_test, test_labels)):
        for kind, values in (
            (f"images{joint}idx3", raw(num, 5, 4, seed=int(part == "t10k"))),
            (f"labels{joint}idx1", labels(num) if part_labels is None else part_labels),
        ):
            content = idx_bytes(values)
            path = folder / f"{part}-{kind}-ubyte{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(content) if compressed else content)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("joint", ["-", "."])
def test_a_folder_of_idx_files(tmp_path, joint, compressed):
    write_set(tmp_path, joint=joint, compressed=compressed)
    data = load_data(tmp_path)
    assert np.array_equal(data.train.images, raw(6, 5, 4))
    assert np.array_equal(data.test.images, raw(4, 5, 4, seed=1))
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.test.labels.tolist() == [0, 1, 2, 0]
    assert data.class_names == ("0", "1", "2")
    assert data.terms == "not stated"


def test_test_files_may_be_missing_but_only_both(tmp_path):
    write_set(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte.gz"):
        load_data(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert load_data(tmp_path).test is None
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="neither train-labels-idx1-ubyte"):
        load_data(tmp_path)


def test_a_named_set_brings_its_class_names(tmp_path, monkeypatch):
    (tmp_path / "fashion-mnist").mkdir()
    write_set(tmp_path / "fashion-mnist", compressed=True)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    data = load_data("fashion-mnist")
    assert data.class_names[0] == "t-shirt"
    assert data.train.num_classes == 10
    assert data.terms == "MIT"


def test_labels_out_of_range_are_named(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    write_set(tmp_path / "mnist", train_labels=np.array([0, 1, 2, 10, 4, 5], np.uint8))
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    with pytest.raises(
        ValueError, match="train-labels-idx1-ubyte: labels must lie in 0 to 9, but image 3 has label 10"
    ):
        load_data("mnist")
    write_set(tmp_path, test_labels=np.array([0, 1, 2, 3], np.uint8))
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte: labels must lie in 0 to 2, but image 3 has label 3"):
        load_data(tmp_path)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_set(tmp_path, train_labels=labels(5))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte holds 6 images but .*train-labels.* holds 5 labels"):
        load_data(tmp_path)


def test_no_images_are_refused(tmp_path):
    write_set(tmp_path, num_train=0)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte: images must be uint8 .*not empty"):
        load_data(tmp_path)


WHOLE = idx_bytes(raw(6, 5, 4))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing where 00 00 08 03 was expected"),
        (b"\x00\x00", "starts with 00 00 where"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "starts with 89 50 4e 47 where"),
        (b"\x00\x00\x0d\x03" + WHOLE[4:], "is not an idx file of unsigned bytes with 3 axes"),
        (idx_bytes(labels(6)), "with 3 axes: it starts with 00 00 08 01"),
        (WHOLE[:9], "ends inside its header"),
        (WHOLE[:-1], "truncated or damaged|holds fewer bytes than"),
        (WHOLE + b"x", "truncated or damaged|holds more bytes than"),
    ],
)
def test_damage_is_described(tmp_path, content, message, compressed):
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(ValueError, match=f"images.*({message})"):
        read_idx(path, 3)


@pytest.mark.parametrize("num_bytes", range(2, 60, 7))
def test_a_truncated_gzip_file_is_described(tmp_path, num_bytes):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(WHOLE)[:num_bytes])
    with pytest.raises(ValueError, match=r"images.gz (is truncated or damaged|is not an idx file|declares)"):
        read_idx(path, 3)


@pytest.mark.parametrize("place", [3, 14, 60, -6, -1])
def test_a_damaged_gzip_file_is_described(tmp_path, place):
    path, content = tmp_path / "images.gz", bytearray(gzip.compress(WHOLE))
    content[place] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"images.gz "):
        read_idx(path, 3)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (10**5, 100, 100), (60_000, 28, 28)])
def test_a_false_size_costs_no_memory(tmp_path, shape, compressed):
    path = tmp_path / "images"
    content = b"\x00\x00\x08\x03" + struct.pack(">3I", *shape) + bytes(1000)
    path.write_bytes(gzip.compress(content) if compressed else content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"images (declares \d+ bytes|is truncated)"):
        read_idx(path, 3)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 10)  # a machine with a hundred bytes
    path = tmp_path / "images"
    path.write_bytes(WHOLE)
    with pytest.raises(ValueError, match="images declares .* GB of images, more than the .* GB of memory here"):
        read_idx(path, 3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-here does not exist; an idx file was expected"):
        read_idx(tmp_path / "nothing-here", 3)
