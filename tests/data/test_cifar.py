"""CIFAR-10's archives, made here byte by byte, and pickles that want more than they may."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest

from torchcaps.data import load_data
from torchcaps.data.cifar import CLASSES

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
NUM = 4  # images of a batch
PIXELS = 3072


def planes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (NUM, PIXELS), dtype=np.uint8)


def labels(seed: int) -> list[int]:
    return [(seed + number) % 10 for number in range(NUM)]


def binary_batch(seed: int) -> bytes:
    return b"".join(bytes([label]) + plane.tobytes() for label, plane in zip(labels(seed), planes(seed), strict=True))


def text(value: bytes) -> bytes:
    """A string as Python 2 pickled it: SHORT_BINSTRING or BINSTRING."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def array(content: bytes, shape=(NUM, PIXELS), kind: bytes = b"u1", fortran: bytes = b"\x89") -> bytes:
    """An array as Python 2 and numpy pickled it with protocol 2."""
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(kind) + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN"
    dtype += integer(-1) + integer(-1) + b"K\x00tb"
    sizes = b"".join(map(integer, shape))
    return made + b"(K\x01(" + sizes + b"t" + dtype + fortran + text(content) + b"tb"


def python_batch(seed: int = 0, *, data: bytes | None = None, numbers=None) -> bytes:
    """A batch as its authors pickled it."""
    numbers = labels(seed) if numbers is None else numbers
    items = text(b"batch_label") + text(b"training batch 1 of 5")
    items += text(b"labels") + b"](" + b"".join(map(integer, numbers)) + b"e"
    items += text(b"data") + (array(planes(seed).tobytes()) if data is None else data)
    items += text(b"filenames") + b"](" + text(b"leptodactylus_pentadactylus_s_000004.png") + b"e"
    return b"\x80\x02}(" + items + b"u."


def write_files(folder, kind: str, **changed: bytes):
    """The files of one kind under their official names."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(NAMES):
        content = binary_batch(seed) if kind == "bin" else python_batch(seed)
        (folder / (f"{name}.bin" if kind == "bin" else name)).write_bytes(changed.get(name, content))
    (folder / "readme.html").write_text("not a batch")


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, arcname=folder.name)


@pytest.mark.parametrize("place", ["files", "folder", "archive", "archive itself"])
@pytest.mark.parametrize("kind", ["bin", "py"])
def test_all_forms_give_the_same(tmp_path, kind, place):
    inner = tmp_path / f"cifar-10-batches-{kind}"
    write_files(inner, kind)
    archive = tmp_path / "packed" / f"cifar-10-{'binary' if kind == 'bin' else 'python'}.tar.gz"
    archive.parent.mkdir()
    pack(inner, archive)
    where = {"files": inner, "folder": tmp_path, "archive": archive.parent, "archive itself": archive}
    data = load_data(where[place])
    assert data.class_names == CLASSES
    assert data.train.images.shape == (5 * NUM, 32, 32, 3)
    assert data.test.images.shape == (NUM, 32, 32, 3)
    assert data.train.labels.tolist() == [label for seed in range(5) for label in labels(seed)]
    assert data.test.labels.tolist() == labels(5)
    # Red comes first, row by row: the second record of batch 2, row 3, column 7.
    plane = planes(1)[1]
    assert np.array_equal(data.test.images, planes(5).reshape(NUM, 3, 32, 32).transpose(0, 2, 3, 1))
    assert data.train.images[NUM + 1, 3, 7].tolist() == [plane[c * 1024 + 3 * 32 + 7] for c in range(3)]


def test_by_name(tmp_path, monkeypatch):
    write_files(tmp_path / "cifar10", "py")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert load_data("cifar10").name == "cifar10"
    for path in (tmp_path / "cifar10").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="cifar10 holds neither cifar-10-binary.tar.gz nor cifar-10-python"):
        load_data("cifar10")


def test_batches_pickled_anew_are_read_too(tmp_path):
    values = {"data": planes(0), "labels": labels(0)}
    write_files(tmp_path, "py", data_batch_1=pickle.dumps(values, protocol=4))
    assert np.array_equal(load_data(tmp_path).train.images[:NUM, 0, 0, 0], planes(0)[:, 0])


class Evil:
    """What a pickle could do to its reader."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Evil(os.system, "touch {}"), "it asks for (posix|nt).system, which no archive of CIFAR-10 needs"),
        (Evil(eval, "open({!r}, 'w')"), "it asks for .*eval"),
        (Evil(np.load, "{}"), "it asks for numpy.load"),
        (Evil(np.zeros, 10**13), "it asks for numpy.zeros"),
        ([1, 2], "must hold a dictionary with data and labels, got list"),
        ({"data": planes(0)}, "`labels` must be a list of class numbers"),
        ({"labels": labels(0)}, "`data` must be an array of bytes"),
        ({"labels": labels(0), "data": planes(0).astype(np.int64)}, r"`data` must be an array of bytes of shape"),
        ({"labels": labels(0), "data": planes(0)[:, :-1].copy()}, "`data` must be an array of bytes"),
        ({"labels": labels(0), "data": np.array([print])}, "it asks for .*print"),
        ({"labels": labels(0)[:-1], "data": planes(0)}, "it holds 4 images but 3 labels"),
        ({"labels": [0.5] * 4, "data": planes(0)}, "`labels` must be a list of class numbers"),
        ({"labels": [0, 1, 2, 10], "data": planes(0)}, "labels must lie in 0 to 9, but image 3 has label 10"),
    ],
)
def test_pickles_that_want_more_than_they_may(tmp_path, value, message):
    trace = tmp_path / "trace"
    if isinstance(value, Evil) and isinstance(value.call[1][0], str):
        value.call = value.call[0], (value.call[1][0].format(str(trace)),)
    write_files(tmp_path, "py", data_batch_2=pickle.dumps(value, protocol=4))
    with pytest.raises(ValueError, match=f"data_batch_2: .*{message}"):
        load_data(tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        python_batch(data=array(b"", shape=(2**31 - 1, PIXELS))),
        python_batch(data=array(planes(0).tobytes(), shape=(NUM + 1, PIXELS))),
        python_batch(data=array(planes(0).tobytes(), kind=b"i8")),
        python_batch(data=array(planes(0).tobytes(), fortran=b"\x88")),
        b"\x80\x02r\xff\xff\xff\xff.",  # puts into place 2^32 - 1 of the memo
        b"\x80\x02]r\xff\xff\xff\xff.",
        b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.",  # bytes that declare 2^64 - 1 of them
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",  # a frame of that size
        b"",
        b"rubbish",
        python_batch()[:-1],
        python_batch()[:5000],
    ],
)
def test_damaged_pickles_cost_no_memory(tmp_path, content):
    write_files(tmp_path, "py", test_batch=content)
    tracemalloc.start()
    with pytest.raises(ValueError, match="test_batch: (it is not a batch of CIFAR-10|`data` must be|it must hold)"):
        load_data(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, which is no number of records of 3073"),
        (binary_batch(0)[:-1], "12291 bytes, which is no number"),
        (b"\x0b" + binary_batch(0)[1:], "labels must lie in 0 to 9, but image 0 has label 11"),
    ],
)
def test_damaged_binary_batches(tmp_path, content, message):
    write_files(tmp_path, "bin", data_batch_5=content)
    with pytest.raises(ValueError, match=f"data_batch_5.bin: .*{message}"):
        load_data(tmp_path)


def test_missing_and_too_large_batches(tmp_path):
    write_files(tmp_path, "bin")
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(ValueError, match="lacks test_batch of CIFAR-10"):
        load_data(tmp_path)
    with (tmp_path / "test_batch.bin").open("wb") as file:
        file.truncate(2**40)  # a hole, no bytes on disk
    with pytest.raises(ValueError, match="test_batch.bin has 1099511627776 bytes, more than any batch of CIFAR-10"):
        load_data(tmp_path)


def test_damaged_archives(tmp_path):
    write_files(tmp_path / "cifar-10-batches-bin", "bin")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    pack(tmp_path / "cifar-10-batches-bin", archive)
    whole = archive.read_bytes()
    for content in (b"", b"rubbish" * 100, whole[:100], whole[: len(whole) // 2], whole[:-9]):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz (is not a tar archive|is truncated or damaged)"):
            load_data(archive)


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    member = tarfile.TarInfo("cifar-10-batches-bin/zeros")
    member.size = 2**40
    with tarfile.open(archive, "w:gz") as file:
        file.addfile(tarfile.TarInfo("empty"), io.BytesIO())
        file.fileobj.write(member.tobuf())
        file.fileobj.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="unpacks to more than 268435456 bytes: it is not CIFAR-10"):
        load_data(archive)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_headers_and_tails_without_end_are_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("torchcaps.data.cifar.MAX_ARCHIVE", 2**21)
    archive = tmp_path / "cifar-10-binary.tar.gz"
    member = tarfile.TarInfo("long")
    member.type, member.size = kind, 0 if kind == tarfile.REGTYPE else 2**32
    with gzip.open(archive, "wb") as file:
        file.write(member.tobuf(tarfile.USTAR_FORMAT) + bytes(2**25))
    tracemalloc.start()
    with pytest.raises(ValueError, match="unpacks to more than 2097152 bytes: it is not CIFAR-10"):
        load_data(archive)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def write_sheets(folder, *, rows=NUM, spare=0):
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for seed, name in enumerate(NAMES):
        pixels = planes(seed)[:rows].reshape(rows, 3, 1024).transpose(0, 2, 1)
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{name}.png")
    train = [label for seed in range(5) for label in labels(seed)] + [0] * spare
    (folder / "train_lables.json").write_text(json.dumps(train))
    (folder / "test_lables.json").write_text(json.dumps(labels(5)))


def test_sheets_of_png_with_their_labels(tmp_path):
    write_sheets(tmp_path / "package")
    data = load_data(tmp_path)
    assert len(data.train) == 5 * NUM
    assert np.array_equal(data.train.images[NUM], planes(1)[0].reshape(3, 32, 32).transpose(1, 2, 0))
    assert data.test.labels.tolist() == labels(5)


def test_sheets_that_do_not_fit_their_labels(tmp_path):
    write_sheets(tmp_path, spare=1)
    with pytest.raises(ValueError, match="has 21 labels, and the sheets beside it 20 images"):
        load_data(tmp_path)
    (tmp_path / "train_lables.json").write_text("[10]")
    with pytest.raises(ValueError, match="class numbers from 0 to 9"):
        load_data(tmp_path)
    write_sheets(tmp_path)
    (tmp_path / "data_batch_2.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="cannot be read as a PNG image"):
        load_data(tmp_path)
