"""smallNORB's binary matrices: what is read, the cache, and what each kind of damage says."""

import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.data.norb import FACTORS, read_header, read_matrix, write_matrix

BASES = {"train": "smallnorb-5x46789x9x18x6x2x8x8-training", "test": "smallnorb-5x01235x9x18x6x2x8x8-testing"}
BYTES, INTEGERS = 0x1E3D4C55, 0x1E3D4C54


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TORCHCAPS_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Where the files lie, apart from the cache."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def matrix_bytes(magic: int, values: np.ndarray) -> bytes:
    """The format as its authors describe it, written here once more."""
    axes = list(values.shape) + [1] * (3 - values.ndim)
    return struct.pack(f"<ii{len(axes)}i", magic, values.ndim, *axes) + values.tobytes()


def pictures(num: int, size: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, 2, size, size), dtype=np.uint8)


def write_part(folder, base, num, *, compressed=False, seed=0, labels=None, infos=None, size=8):
    """The three files of a part."""
    labels = np.arange(num) % 5 if labels is None else labels
    infos = np.stack([np.arange(num) % count for count in (10, 9, 18, 6)], 1) if infos is None else infos
    ending = ".gz" if compressed else ""
    for kind, magic, values in (
        ("dat", BYTES, pictures(num, size, seed)),
        ("cat", INTEGERS, np.asarray(labels, "<i4")),
        ("info", INTEGERS, np.asarray(infos, "<i4")),
    ):
        content = matrix_bytes(magic, values)
        (folder / f"{base}-{kind}.mat{ending}").write_bytes(gzip.compress(content) if compressed else content)


def write_set(folder, **options):
    write_part(folder, BASES["train"], 12, **options)
    write_part(folder, BASES["test"], 7, seed=1, **options)


@pytest.mark.parametrize("compressed", [False, True])
def test_pairs_become_two_channels_with_everything_that_is_known(folder, compressed):
    write_set(folder, compressed=compressed)
    data = load_data(folder)
    assert np.array_equal(data.train.images, pictures(12).transpose(0, 2, 3, 1))
    assert np.array_equal(data.test.images, pictures(7, seed=1).transpose(0, 2, 3, 1))
    assert data.train.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert data.class_names == ("animal", "human", "aeroplane", "truck", "car")
    assert tuple(data.train.factors) == FACTORS == ("instance", "elevation", "azimuth", "lighting")
    assert data.train.factors["instance"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.test.factors["lighting"].tolist() == [0, 1, 2, 3, 4, 5, 0]
    part = data.train.subset([3, 11])
    assert part.factors["elevation"].tolist() == [3, 2]


def test_by_name(folder, monkeypatch):
    (folder / "smallnorb").mkdir()
    write_set(folder / "smallnorb", compressed=True)
    monkeypatch.setenv("TORCHCAPS_DATA", str(folder))
    assert load_data("smallnorb").train.images.shape == (12, 8, 8, 2)
    reduced = load_data("smallnorb", image_size=(4, 4))
    assert reduced.train.images.shape == (12, 4, 4, 2)
    assert "research only" in reduced.terms


@pytest.mark.parametrize("compressed", [False, True])
def test_reduced_pictures_are_means_of_blocks(folder, compressed):
    write_set(folder, compressed=compressed)
    found = load_data(folder, image_size=(4, 2)).train.images
    expected = np.empty((12, 4, 2, 2))
    for number, pair in enumerate(pictures(12)):
        for camera, picture in enumerate(pair):
            for row in range(4):
                for column in range(2):
                    block = picture[2 * row : 2 * row + 2, 4 * column : 4 * column + 4]
                    expected[number, row, column, camera] = block.mean()
    assert np.abs(found - expected).max() <= 0.5


def test_plain_files_are_mapped_and_never_written(folder, cache):
    write_set(folder)
    path = folder / f"{BASES['train']}-dat.mat"
    before = path.read_bytes()
    images = load_data(folder).train.images
    base = images
    while not isinstance(base, np.memmap):
        base = base.base
    images[:] = 0
    assert path.read_bytes() == before
    assert not cache.exists()


def test_what_is_cached_is_not_read_again(folder, cache, monkeypatch):
    write_set(folder, compressed=True)
    first = load_data(folder, image_size=(4, 4))
    assert len(list(cache.glob("*.npy"))) == 2
    assert not list(cache.glob(".*"))
    monkeypatch.setattr("torchcaps.data.norb._pieces", lambda *arguments: pytest.fail("read again"))
    again = load_data(folder, image_size=(4, 4))
    assert np.array_equal(first.train.images, again.train.images)
    again.train.images[:] = 7  # stays in memory
    assert np.array_equal(load_data(folder, image_size=(4, 4)).train.images, first.train.images)


def test_changed_files_are_read_again_and_the_old_cache_goes(folder, cache):
    write_set(folder, compressed=True)
    load_data(folder)
    write_part(folder, BASES["train"], 12, compressed=True, seed=5)
    assert np.array_equal(load_data(folder).train.images, pictures(12, seed=5).transpose(0, 2, 3, 1))
    assert len(list(cache.glob("norb-train*.npy"))) == 1


def test_a_damaged_cache_is_made_again(folder, cache):
    write_set(folder, compressed=True)
    load_data(folder)
    for path, content in zip(sorted(cache.glob("*.npy")), (b"rubbish", b""), strict=True):
        path.write_bytes(content)
    assert np.array_equal(load_data(folder).train.images, pictures(12).transpose(0, 2, 3, 1))
    path = next(cache.glob("norb-train*.npy"))
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(load_data(folder).train.images, pictures(12).transpose(0, 2, 3, 1))


def test_without_a_place_for_the_cache_all_stays_in_memory(folder, tmp_path, monkeypatch):
    write_set(folder, compressed=True)
    (tmp_path / "file").write_text("no folder can be made here")
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(load_data(folder).train.images, pictures(12).transpose(0, 2, 3, 1))


def test_norb_has_several_files_and_a_blank_category(folder):
    for number in (2, 1):
        base = f"norb-5x46789x9x18x6x2x8x8-training-{number:02}"
        write_part(folder, base, 6, seed=number, labels=[0, 1, 2, 3, 4, 5], infos=np.full((6, 10), number))
    data = load_data(folder)
    joined = np.concatenate([pictures(6, seed=1), pictures(6, seed=2)])
    assert np.array_equal(data.train.images, joined.transpose(0, 2, 3, 1))
    assert data.class_names[-1] == "blank"
    assert data.train.factors["azimuth"].tolist() == [1] * 6 + [2] * 6
    assert data.test is None


def test_of_a_file_and_its_compressed_twin_the_file_counts(folder):
    write_set(folder)
    (folder / f"{BASES['train']}-dat.mat.gz").write_bytes(b"never opened")
    assert len(load_data(folder).train) == 12


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8", ">i4"])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4), (3, 2, 4, 5)])
def test_what_is_written_is_read_back(tmp_path, dtype, shape):
    values = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    write_matrix(tmp_path / "values.mat", values)
    assert np.array_equal(read_matrix(tmp_path / "values.mat", len(shape)), values)
    with pytest.raises(ValueError, match=r"values.mat must hold a matrix with 5 axes"):
        read_matrix(tmp_path / "values.mat", 5)
    with pytest.raises(ValueError, match=r"1 to 8 axes of .*uint8.*got complex128"):
        write_matrix(tmp_path / "values.mat", values.astype(complex))


WHOLE = matrix_bytes(BYTES, pictures(12))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing where a type such as 55 4c 3d 1e"),
        (WHOLE[:5], "starts with 55 4c 3d 1e 04 where"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "is not a binary matrix of smallNORB: it starts with 89 50"),
        (WHOLE[3::-1] + WHOLE[4:], "starts with 1e 3d 4c 55"),  # big-endian
        (WHOLE[:4] + struct.pack("<i", 9) + WHOLE[8:], "number of axes from 1 to 8"),
        (WHOLE[:4] + struct.pack("<i", 0) + WHOLE[8:], "number of axes from 1 to 8"),
        (WHOLE[:4] + struct.pack("<i", -1) + WHOLE[8:], "number of axes from 1 to 8"),
        (WHOLE[:20], "ends inside its header"),
        (WHOLE[:8] + struct.pack("<i", -3) + WHOLE[12:], "declares the sizes"),
        (WHOLE[:-1], "truncated or damaged|holds fewer bytes"),
        (WHOLE + b"x", "truncated or damaged|holds more bytes"),
    ],
)
def test_damage_is_described(folder, content, message, compressed):
    write_set(folder)
    path = folder / f"{BASES['train']}-dat.mat"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(ValueError, match=f"training-dat.mat.*({message})"):
        load_data(folder)


def test_damaged_gzip_data_leave_nothing_in_the_cache(folder, cache):
    write_set(folder, compressed=True)
    path = folder / f"{BASES['train']}-dat.mat.gz"
    content = bytearray(path.read_bytes())
    content[-6] ^= 0xFF  # the checksum
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"training-dat.mat.gz is truncated or damaged"):
        load_data(folder)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"training-dat.mat.gz is truncated or damaged"):
        load_data(folder)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shape", [(2**31 - 1,) * 4, (24300, 2, 96, 96)])
def test_a_false_size_costs_no_memory(tmp_path, shape, compressed):
    path = tmp_path / "pictures.mat"
    content = struct.pack("<ii4i", BYTES, 4, *shape) + bytes(1000)
    path.write_bytes(gzip.compress(content) if compressed else content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"pictures.mat (declares \d+ bytes|is truncated)"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_files_that_do_not_belong_together(folder):
    write_set(folder, labels=None)
    write_matrix(folder / f"{BASES['train']}-cat.mat", np.zeros(11, np.int32))
    with pytest.raises(ValueError, match=r"training-dat.mat holds 12 pairs .* but .*training-cat.mat describes 11"):
        load_data(folder)
    write_matrix(folder / f"{BASES['train']}-cat.mat", np.full(12, 6, np.int32))
    with pytest.raises(ValueError, match=r"training-cat.mat: labels must lie in 0 to 5, but image 0 has label 6"):
        load_data(folder)
    write_matrix(folder / f"{BASES['train']}-cat.mat", np.zeros(12, np.float32))
    with pytest.raises(ValueError, match=r"training-cat.mat: labels must be whole numbers, got float32"):
        load_data(folder)
    write_matrix(folder / f"{BASES['train']}-cat.mat", np.zeros(12, np.int32))
    write_matrix(folder / f"{BASES['train']}-info.mat", np.zeros((12, 3), np.int32))
    with pytest.raises(ValueError, match=r"training-info.mat must hold at least 4 finite numbers per image \(instance"):
        load_data(folder)
    (folder / f"{BASES['train']}-info.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"training-info.mat does not exist, nor with .gz"):
        load_data(folder)


def test_pictures_must_be_pairs_of_bytes_of_one_size(folder):
    write_set(folder)
    write_matrix(folder / f"{BASES['train']}-dat.mat", np.zeros((12, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"training-dat.mat must hold bytes of shape \(n, 2, h, w\)"):
        load_data(folder)
    write_part(folder, BASES["train"], 12)
    write_part(folder, BASES["train"] + "-02", 12, size=4)
    with pytest.raises(ValueError, match=r"training-02-dat.mat holds pictures of \(2, 4, 4\) but .*of \(2, 8, 8\)"):
        load_data(folder)


def test_sizes_must_be_whole_fractions(folder):
    write_set(folder)
    with pytest.raises(ValueError, match=r"image_size must be a whole fraction of \(8, 8\), .*got \(3, 4\)"):
        load_data(folder, image_size=(3, 4))
