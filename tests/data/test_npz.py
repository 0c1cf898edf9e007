"""Arrays in .npz files: what is read, and what each kind of damage says."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.data.npz import read_npz


def raw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.npz"


IMAGES, LABELS = raw(6, 5, 4), np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_training_and_test_arrays(path, save):
    save(path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[3:5], y_test=LABELS[4:].astype(np.uint8))
    data = load_data(path)
    assert np.array_equal(data.train.images, IMAGES)
    assert np.array_equal(data.test.images, IMAGES[3:5])
    assert data.test.labels.tolist() == [1, 2]
    assert data.train.labels.tolist() == LABELS.tolist()
    assert data.test.labels.dtype == np.int64
    assert data.class_names == ("0", "1", "2")
    assert data.name == "arrays.npz"


def test_images_and_labels(path):
    colour = raw(6, 5, 4, 3)
    np.savez(path, images=np.asfortranarray(colour), labels=LABELS[:, None], notes=np.array("hello"))
    train, test = read_npz(path)
    assert np.array_equal(train.images, colour)
    assert train.labels.tolist() == LABELS.tolist()
    assert test is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
def test_fractions_become_the_bytes_they_came_from(path, dtype):
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    np.savez(path, images=(images / 255).astype(dtype), labels=np.arange(4))
    assert np.array_equal(read_npz(path)[0].images, images)


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint16, ">i4"])
def test_whole_numbers_up_to_255_are_bytes(path, dtype):
    np.savez(path, images=IMAGES.astype(dtype), labels=LABELS.astype(dtype))
    train, _ = read_npz(path)
    assert np.array_equal(train.images, IMAGES)
    assert train.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_several_classes(path, dtype):
    table = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=dtype)
    np.savez(path, images=IMAGES[:3], labels=table)
    train, _ = read_npz(path)
    assert train.is_multi_label
    assert train.labels.dtype == bool
    assert np.array_equal(train.labels, table.astype(bool))
    assert train.num_classes == 3


def with_value(value: float) -> np.ndarray:
    images = IMAGES / 255
    images[3, 2, 1] = value
    return images


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": IMAGES}, "must hold the arrays x_train and y_train, or images and labels; it holds x_train"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "images: there are 6 images but 5 labels"),
        ({"images": IMAGES, "labels": np.array([0, 1, -1, 0, 0, 0])}, "labels: labels must lie in 0 to 1, but image 2"),
        ({"images": IMAGES, "labels": LABELS * 1.0}, "labels must hold whole numbers .* got float64"),
        ({"images": IMAGES, "labels": np.array(3)}, r"labels must hold whole numbers .* got int64 of shape \(\)"),
        ({"images": IMAGES, "labels": LABELS + 10**9}, "labels: labels must number the classes 0, 1, 2, ..."),
        ({"images": IMAGES, "labels": np.full(6, 2**63, np.uint64)}, "the label 9223372036854775808, .* out of range"),
        ({"images": IMAGES, "labels": np.full((6, 2), 2)}, "zeros and ones of shape"),
        ({"images": IMAGES, "labels": np.array(list("abcdef"))}, "labels must hold numbers, got <U1"),
        ({"images": with_value(np.nan), "labels": LABELS}, "image 3 of images has a value that is not a number"),
        ({"images": with_value(np.inf), "labels": LABELS}, "image 3 of images has a value that is not a number"),
        (
            {"images": with_value(1.5), "labels": LABELS},
            "float64 and must lie between 0 and 1, got values from .* to 1.5",
        ),
        ({"images": IMAGES.astype(int) - 1, "labels": LABELS}, "must lie between 0 and 255, got values from -1"),
        ({"images": IMAGES.astype(int) + 9, "labels": LABELS}, "must lie between 0 and 255"),
        ({"images": IMAGES > 9, "labels": LABELS}, "got truth values"),
        ({"images": IMAGES * 1j, "labels": LABELS}, "must hold numbers, got complex128"),
        ({"images": np.array(0.5), "labels": LABELS}, "images: images must be uint8"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, "images: images must be uint8 .* not empty"),
        ({"images": raw(6, 3, 8, 8), "labels": LABELS}, "channels come last"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES}, "lacks the array y_test"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:1], "y_test": [3]},
            "y_test: labels must lie in 0 to 2, but image 0 has label 3",
        ),
    ],
)
def test_wrong_arrays_are_described(path, arrays, message):
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=rf"arrays.npz.*{message}"):
        load_data(path)


class Trap:
    """Unpickling it would leave a trace."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def test_nothing_is_unpickled(path):
    np.savez(path, images=np.array([Trap()] * 3, dtype=object), labels=LABELS[:3])
    with pytest.raises(ValueError, match="images must hold numbers, got object; nothing is ever unpickled"):
        load_data(path)
    assert not Trap.sprung
    np.load(path, allow_pickle=True)["images"]
    assert Trap.sprung  # the trap works


def write_entry(path, content: bytes, **options) -> None:
    """An archive whose images are these bytes."""
    labels = io.BytesIO()
    np.save(labels, LABELS)
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", labels.getvalue())


def npy_bytes(shape, content: bytes, descr: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(10**6, 1000, 1000), (2**40, 2**40, 2**40), (6, 5, 5), (6, 5, 3)])
def test_a_false_shape_costs_no_memory(path, shape, method):
    write_entry(path, npy_bytes(shape, IMAGES.tobytes()), compression=method)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"arrays.npz: the array images declares shape .* but 120 are there"):
        load_data(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_false_size_in_the_archive_costs_no_memory(path):
    """The directory of the archive declares gigabytes that are not there."""
    content = npy_bytes((39_000_000, 10, 10), IMAGES.tobytes())
    write_entry(path, content, compression=zipfile.ZIP_DEFLATED)
    archive = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as opened:
        start = opened.start_dir
    assert int.from_bytes(archive[start + 24 : start + 28], "little") == len(content)
    false_size = 3_900_000_000
    archive[start + 24 : start + 28] = false_size.to_bytes(4, "little")
    path.write_bytes(archive)
    tracemalloc.start()
    with pytest.raises(
        ValueError, match=r"arrays.npz declares 3900000000 bytes, which its \d+ compressed bytes cannot"
    ):
        load_data(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not an archive at all" * 9, b"\x93NUMPY\x01\x00"])
def test_other_files_are_described(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="arrays.npz is not an .npz file, or is damaged"):
        load_data(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY\x09\x00", b"\x93NUMPY\x01\x00\x06\x00abcdef", b"plain text", b"\x93NUMPY\x01\x00\x04\x00{'a\n"],
)
def test_other_entries_are_described(path, content):
    write_entry(path, content)
    with pytest.raises(ValueError, match="arrays.npz: the array images has a damaged header"):
        load_data(path)


@pytest.mark.parametrize("flip", [0x41, 0xFF])
def test_damage_anywhere_gives_one_sentence_or_the_right_images(path, flip):
    """Every byte of a small file in turn: never another kind of exception, never wrong values."""
    np.savez_compressed(path, images=IMAGES, labels=LABELS)
    whole = path.read_bytes()
    num_refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= flip
        path.write_bytes(damaged)
        try:
            train, _ = read_npz(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            num_refused += 1
        else:
            assert np.array_equal(train.images, IMAGES)
            assert np.array_equal(train.labels, LABELS)
    assert num_refused > len(whole) // 2


def test_truncation_anywhere_is_described(path):
    np.savez_compressed(path, images=IMAGES, labels=LABELS)
    whole = path.read_bytes()
    for num_bytes in range(0, len(whole), 5):
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(ValueError, match="arrays.npz"):
            read_npz(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(FileNotFoundError, match="arrays.npz does not exist"):
        read_npz(path)
