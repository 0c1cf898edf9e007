"""Files from strangers: whatever is in them, a reader reads them or says in one sentence which file is wrong."""

import gzip
import io
import json
import os
import pickle
import random
import resource
import shutil
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import torchcaps
from norb_files import write_pairs
from torchcaps.data import load_data
from torchcaps.data.text import read_vectors
from torchcaps.models import create_model

ROUNDS = int(os.environ.get("TORCHCAPS_FUZZ_ROUNDS", "5"))  # more by hand
# What a user may cause; anything else is a crash.
CLEAR = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
LARGEST_GROWTH = 400 << 20
LONGEST_SECONDS = 20.0


def write_idx(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    for part in ("train", "t10k"):
        header = struct.pack(">IIII", 0x803, 20, 8, 8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = struct.pack(">II", 0x801, 20) + bytes(i % 10 for i in range(20))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def write_cifar_binary(folder: Path) -> None:
    source = random.Random(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = b"".join(bytes([i % 10]) + source.randbytes(3072) for i in range(10))
        (folder / name).write_bytes(rows)


def write_cifar_pickles(folder: Path) -> None:
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {"data": np.zeros((10, 3072), np.uint8), "labels": list(range(10))}
        (inner / name).write_bytes(pickle.dumps(batch, protocol=4))


def write_npz(folder: Path) -> None:
    labels = np.arange(20) % 2
    np.savez_compressed(folder / "set.npz", x_train=np.zeros((20, 8, 8), np.uint8), y_train=labels)


def write_images(folder: Path) -> None:
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for index in range(4):
            Image.fromarray(np.full((9, 9), 20 * index, np.uint8)).save(folder / label / f"{index}.png")
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / label / "photo.jpg")


def write_table(folder: Path, name: str) -> None:
    rows = [(f"a text about number {i} 文本", ("good", "bad")[i % 2]) for i in range(12)]
    lines = {
        "texts.csv": ["text,label", *(f'"{text}",{label}' for text, label in rows)],
        "texts.tsv": ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)],
        "texts.jsonl": [json.dumps({"text": text, "label": label}) for text, label in rows],
        "texts.txt": [f"{label} {text}" for text, label in rows],
    }[name]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_vectors(folder: Path, name: str) -> None:
    words, values = ("one", "two", "三"), np.arange(12, dtype=np.float32).reshape(3, 4)
    if name == "vectors.npz":
        np.savez(folder / name, words=np.array(words), vectors=values)
    elif name == "vectors.bin":
        entries = (word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(words, values, strict=True))
        (folder / name).write_bytes(b"3 4\n" + b"".join(entries))
    else:
        lines = (f"{word} {' '.join(map(str, row))}" for word, row in zip(words, values, strict=True))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_model(folder: Path) -> None:
    create_model("cnn-small", image_shape=(1, 28, 28), num_classes=2).save_pretrained(folder)


def table(name: str) -> tuple[Callable, Callable]:
    return lambda folder: write_table(folder, name), lambda folder: load_data(folder / name)


def vectors(name: str) -> tuple[Callable, Callable]:
    return lambda folder: write_vectors(folder, name), lambda folder: read_vectors(folder / name)


READERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], object]]] = {
    "idx": (write_idx, load_data),
    "norb": (lambda folder: write_pairs(folder, size=12), load_data),
    "cifar binary": (write_cifar_binary, load_data),
    "cifar python": (write_cifar_pickles, load_data),
    "npz": (write_npz, lambda folder: load_data(folder / "set.npz")),
    "images": (write_images, load_data),
    **{name: table(name) for name in ("texts.csv", "texts.tsv", "texts.jsonl", "texts.txt")},
    **{name: vectors(name) for name in ("vectors.npz", "vectors.bin", "vectors.txt")},
    "model": (write_model, torchcaps.load),
}


def mutate(content: bytes, choose: random.Random) -> bytes:
    """Cut, flipped, repeated, or with a number that claims too much."""
    kind = choose.choice(("cut", "flip", "flip", "huge", "huge", "repeat", "noise", "empty"))
    at = choose.randrange(len(content) + 1)
    if choose.random() < 0.5:
        at = min(at, choose.randrange(64))  # where headers are
    if kind == "cut":
        return content[:at]
    if kind == "flip":
        changed = bytearray(content)
        for _ in range(choose.choice((1, 4, 32))):
            changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
        return bytes(changed)
    if kind == "huge":
        claim = choose.choice((b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\xff" * 8, b"999999999999", b"\x00" * 8))
        return content[:at] + claim + content[at + len(claim) :]
    if kind == "repeat":
        return content[:at] + content[at : at + 200] * choose.choice((2, 50)) + content[at:]
    return choose.randbytes(len(content)) if kind == "noise" else b""


def listing(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def refusal_of(read: Callable[[Path], object], folder: Path) -> str | None:
    """What the reader says against the files, None if it reads them; any other exception is a failure."""
    try:
        read(folder)
    except CLEAR as error:
        return str(error)
    return None


@pytest.mark.filterwarnings("ignore")  # Pillow warns of odd files, and reads them
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name, number, tmp_path, monkeypatch):
    write, read = READERS[name]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    choose = random.Random(f"{name} {number}")
    victim = choose.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    victim.write_bytes(mutate(victim.read_bytes(), choose))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    files = listing(tmp_path) | listing(folder)
    refusal = refusal_of(read, folder)
    assert refusal is None or victim.name in refusal or folder.name in refusal
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < LARGEST_GROWTH
    assert time.process_time() - started < LONGEST_SECONDS
    assert {path for path in listing(tmp_path) - files if "cache" not in path.parts} == set()


@pytest.mark.parametrize("name", READERS)
def test_the_files_are_good_before_they_are_mutated(name, tmp_path):
    write, read = READERS[name]
    write(tmp_path)
    read(tmp_path)


class Attack:
    """Pickled into a file, it would leave a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_no_code_is_run(tmp_path):
    trace, folder = tmp_path / "trace", tmp_path / "data"
    folder.mkdir()
    write_cifar_pickles(folder)
    (folder / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Attack(trace)))
    with pytest.raises(ValueError, match="data_batch_3"):
        load_data(folder)
    hostile = np.empty(1, object)
    hostile[0] = Attack(trace)
    np.savez(folder / "set.npz", x_train=hostile, y_train=np.zeros(1))
    with pytest.raises(ValueError, match=r"set\.npz"):
        load_data(folder / "set.npz")
    write_model(folder / "model")
    (folder / "model" / "model.safetensors").write_bytes(pickle.dumps(Attack(trace)))
    with pytest.raises(ValueError, match="model"):
        torchcaps.load(folder / "model")
    assert not trace.exists()


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
            for _ in range(64):
                entry.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=r"set\.npz"):
        load_data(tmp_path / "set.npz")


def test_an_archive_cannot_write_outside(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    write_cifar_binary(inner)
    folder = tmp_path / "data"
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for path in inner.iterdir():
            archive.add(path, f"../../{path.name}")
    shutil.rmtree(inner)
    before = listing(tmp_path)
    refusal = refusal_of(load_data, folder)
    assert refusal is None or str(folder) in refusal
    assert {path for path in listing(tmp_path) - before if path.parent != folder} == set()
