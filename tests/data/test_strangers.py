"""Files from strangers: whatever is in them, a reader reads them or says in one sentence which file is wrong."""

import gzip
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import torchcaps
from support.strangers import (
    CLEAR,
    FORMATS,
    MOST_BYTES,
    MOST_SECONDS,
    check,
    peak_bytes,
    write_capsules,
    write_cifar_archive,
    write_cifar_binary,
    write_cifar_pickles,
    write_idx,
    write_images,
    write_model,
    write_run,
)
from torchcaps.data import load_data
from torchcaps.runs import RunConfig

ROUNDS = int(os.environ.get("TORCHCAPS_FUZZ_ROUNDS", "5"))  # more by hand


@pytest.mark.filterwarnings("ignore")  # Pillow warns of odd files, and reads them
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_read_or_refused(name, number, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    FORMATS[name].write(folder)
    _, wrong = check(name, number, folder, tmp_path / "cache")
    assert wrong == []


@pytest.mark.parametrize("name", FORMATS)
def test_the_files_are_good_before_they_are_mutated(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    FORMATS[name].write(tmp_path / "data")
    assert FORMATS[name].read(tmp_path / "data") is not None


def refused(read, path: Path, match: str) -> None:
    """The reader says so, and takes neither memory nor time before."""
    before, started = peak_bytes(reset=True), time.process_time()
    with pytest.raises(CLEAR, match=match):
        read(path)
    assert peak_bytes() - before < MOST_BYTES
    assert time.process_time() - started < MOST_SECONDS


class Attack:
    """Pickled into a file, it would leave a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_no_pickle_is_believed(tmp_path):
    trace, folder = tmp_path / "trace", tmp_path / "data"
    folder.mkdir()
    write_cifar_pickles(folder)
    (folder / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Attack(trace)))
    refused(load_data, folder, "data_batch_3")
    hostile = np.empty(1, object)
    hostile[0] = Attack(trace)
    np.savez(folder / "set.npz", x_train=hostile, y_train=np.zeros(1))
    refused(load_data, folder / "set.npz", r"set\.npz")
    write_model(folder / "model")
    (folder / "model" / "model.safetensors").write_bytes(pickle.dumps(Attack(trace)))
    refused(torchcaps.load, folder / "model", "model")
    assert not trace.exists()


def change(path: Path, **arguments) -> None:
    """Write other arguments into the config.json of a model."""
    config = json.loads(path.read_text())
    config["arguments"] |= arguments
    path.write_text(json.dumps(config))


def test_a_model_cannot_name_code_to_run(tmp_path, monkeypatch):
    write_capsules(tmp_path / "model")
    config, trace = tmp_path / "model" / "config.json", tmp_path / "trace"
    change(config, routing="subprocess:Popen", routing_options={"args": ["touch", str(trace)]})
    refused(torchcaps.load, tmp_path / "model", "'subprocess:Popen' must be a subclass of torchcaps.nn.Routing")
    assert not trace.exists()
    monkeypatch.syspath_prepend(tmp_path)  # as the command line does with the current folder
    (tmp_path / "strangers_own.py").write_text(f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n")
    change(config, routing="strangers_own:Routing", routing_options={})
    refused(torchcaps.load, tmp_path / "model", r"config\.json asks for the routing .* TORCHCAPS_TRUST=strangers_own")
    assert not trace.exists()
    assert "strangers_own" not in sys.modules


def test_a_model_of_ones_own_code_is_trusted_when_told(tmp_path, monkeypatch):
    write_capsules(tmp_path / "model")
    change(tmp_path / "model" / "config.json", routing="users_own:Mine")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_own.py").write_text("from torchcaps import nn\n\n\nclass Mine(nn.EMRouting):\n    pass\n")
    monkeypatch.setenv("TORCHCAPS_TRUST", "others,users_own")
    assert type(torchcaps.load(tmp_path / "model").model.class_capsules.routing).__name__ == "Mine"
    monkeypatch.delenv("TORCHCAPS_TRUST")
    torchcaps.load(tmp_path / "model")  # it is loaded now
    monkeypatch.delitem(sys.modules, "users_own")


@pytest.mark.parametrize(
    "arguments",
    [{"num_classes": 10**9}, {"types": [10**6, 10**6, 10**6]}, {"num_classes": 10**30}, {"pose_size": 10**6}],
    ids=str,
)
def test_a_model_that_declares_much_takes_no_memory(arguments, tmp_path):
    write_capsules(tmp_path)
    change(tmp_path / "config.json", **arguments)
    refused(torchcaps.load, tmp_path, tmp_path.name)


def test_deep_json_is_no_crash(tmp_path):
    write_model(tmp_path / "model")
    deep = "[" * 100_000
    (tmp_path / "model" / "config.json").write_text(deep)
    refused(torchcaps.load, tmp_path / "model", r"config\.json is damaged")
    (tmp_path / "texts.jsonl").write_text('{"text": ' + deep + "\n")
    refused(load_data, tmp_path / "texts.jsonl", r"texts\.jsonl, line 1, is not JSON")


@pytest.mark.parametrize("content", ["[]", "{}", '{"image_size": 3, "training": {}}', '{"training": []}', "[" * 50_000])
def test_a_run_folder_with_a_wrong_config(content, tmp_path):
    write_run(tmp_path)
    (tmp_path / "config.json").write_text(content)
    refused(RunConfig.read, tmp_path, r"config\.json")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = io.BytesIO()
    np.save(bomb, np.zeros(0, np.uint8))
    header = bomb.getvalue().replace(b"(0,)", b"(1 << 40,)")
    with zipfile.ZipFile(tmp_path / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y_train.npy", header)
        with archive.open("x_train.npy", "w", force_zip64=True) as entry:
            np.lib.format.write_array_header_1_0(
                entry, {"descr": "|u1", "fortran_order": False, "shape": (8 << 20, 1000, 1)}
            )
            for _ in range(8):
                entry.write(bytes(1 << 20))
    refused(load_data, tmp_path / "set.npz", r"set\.npz")


def test_a_gzip_bomb_is_no_text(tmp_path):
    with gzip.open(tmp_path / "texts.csv.gz", "wb") as file:
        file.write(b"text,label\n")
        for _ in range(80):
            file.write(b"a" * (1 << 20))
    refused(load_data, tmp_path / "texts.csv.gz", r"texts\.csv\.gz unpacks to more than 200 times its size")


def test_a_gzip_bomb_is_no_idx_file(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    header = struct.pack(">IIII", 0x803, 60_000, 10_000, 10_000)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(1 << 20)))
    refused(load_data, tmp_path, "train-images-idx3-ubyte.gz declares")


def test_a_picture_that_declares_much_takes_no_memory(tmp_path):
    write_images(tmp_path)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")
    (tmp_path / "cat" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    refused(load_data, tmp_path, r"0\.png cannot be read .* pixels")


def archived(folder: Path, *members: tarfile.TarInfo) -> Path:
    """An archive of CIFAR-10 with these members before the good ones, and nothing in those."""
    write_cifar_archive(folder)
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path) as good:
        rest = [(member, good.extractfile(member)) for member in good.getmembers()]
        with tarfile.open(folder / "new.tar.gz", "w:gz") as archive:
            for member in members:
                archive.addfile(member)
            for member, content in rest:
                archive.addfile(member, content)
    (folder / "new.tar.gz").replace(path)
    return path


def member(name: str, **attributes) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(found, attribute, value)
    return found


def test_an_archive_cannot_write_outside(tmp_path):
    inner, folder = tmp_path / "inner", tmp_path / "data"
    inner.mkdir(), folder.mkdir()
    write_cifar_binary(inner)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for path in inner.iterdir():
            archive.add(path, f"../../{path.name}")
    before = set(tmp_path.rglob("*"))
    assert len(load_data(folder).train) == 50  # read from the archive, and never unpacked to disk
    assert set(tmp_path.rglob("*")) == before


def test_links_in_an_archive_are_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(3073))
    links = [
        member("a/data_batch_1.bin", type=tarfile.SYMTYPE, linkname=str(secret)),
        member("b/data_batch_1.bin", type=tarfile.LNKTYPE, linkname="../../secret"),
        member("c/data_batch_1.bin", type=tarfile.FIFOTYPE),
        member("/d/data_batch_1.bin", type=tarfile.CHRTYPE),
    ]
    (tmp_path / "data").mkdir()
    archived(tmp_path / "data", *links)
    assert len(load_data(tmp_path / "data").train) == 50


def test_an_archive_that_declares_much_takes_no_memory(tmp_path):
    path = archived(tmp_path, member("data_batch_1.bin", size=0))
    content = bytearray(gzip.decompress(path.read_bytes()))
    header = tarfile.TarInfo("data_batch_1.bin")
    header.size = 1 << 40
    content[:512] = header.tobuf(tarfile.GNU_FORMAT)[:512]
    path.write_bytes(gzip.compress(bytes(content)))
    refused(load_data, tmp_path, r"cifar-10-binary\.tar\.gz")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    write_images(tmp_path)
    os.mkfifo(tmp_path / "cat" / "9.png")
    refused(load_data, tmp_path, r"9\.png does not exist")
    (tmp_path / "cat" / "9.png").unlink()
    (tmp_path / "cat" / "9.png").symlink_to("/dev/zero")
    refused(load_data, tmp_path, r"9\.png does not exist")
