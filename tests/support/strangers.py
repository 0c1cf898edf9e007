"""Files from strangers: good ones of every format, and what may be wrong with them.

Whatever is in a file, its reader reads it or says in one sentence which file is wrong; it takes no memory or time for
what is merely declared, runs no code, and writes nothing but the cache.

`PYTHONPATH=tests python -m support.strangers MINUTES FILE` goes on for so many minutes of CPU time and records what was
found.
"""

import gzip
import io
import json
import os
import pickle
import random
import resource
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import torchcaps
from support.norb_files import write_pairs
from torchcaps.data import load_data
from torchcaps.data.text import read_vectors
from torchcaps.environment import environment
from torchcaps.inputs.texts import TextEncoding
from torchcaps.models import create_model
from torchcaps.runs import RunConfig
from torchcaps.storage import write_json
from torchcaps.training.checkpoint import load_latest, save_state
from torchcaps.training.tracking import MetricsFile

# What a user may cause; anything else is a crash.
CLEAR = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
MOST_BYTES = 400 << 20
MOST_SECONDS = 20.0
RUNNING = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen")


def write_idx(folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    for part in ("train", "t10k"):
        header = struct.pack(">IIII", 0x803, 20, 8, 8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = struct.pack(">II", 0x801, 20) + bytes(i % 10 for i in range(20))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def write_norb_packed(folder: Path) -> None:
    write_pairs(folder, size=12)
    for path in folder.iterdir():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def write_cifar_binary(folder: Path) -> None:
    source = random.Random(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = b"".join(bytes([i % 10]) + source.randbytes(3072) for i in range(10))
        (folder / name).write_bytes(rows)


def write_cifar_archive(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    write_cifar_binary(inner)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(inner, "cifar-10-batches-bin")
    shutil.rmtree(inner)


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
    }[name.removesuffix(".gz")]
    content = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def write_text_folders(folder: Path) -> None:
    for label in ("good", "bad"):
        (folder / label).mkdir()
        for number in range(3):
            (folder / label / f"{number}.txt").write_text(f"a {label} text, the number {number}", encoding="utf-8")


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


def write_capsules(folder: Path) -> None:
    options = {"types": (2, 3, 3), "routing": "em", "routing_options": {"num_iterations": 2}}
    create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=5, **options).save_pretrained(folder)


def write_text_model(folder: Path) -> None:
    encoding = TextEncoding.of(["a fine film", "a bad film"])
    model = create_model("text-capsule-a", num_tokens=encoding.num_tokens, num_classes=2, embedding_size=8)
    model.preprocessing = encoding
    model.save_pretrained(folder)


def write_run(folder: Path) -> None:
    import torch

    parts = {"training": RunConfig().training.to_dict(), "text": {}, "interactions": {}}
    write_json(folder / "config.json", RunConfig().__dict__ | parts)
    write_model(folder / "model")
    MetricsFile(folder).append({"epoch": 1, "loss": 0.5})
    for name in ("previous", "last"):
        save_state(folder / f"{name}.safetensors", {"weight": torch.arange(12.0)}, {"epoch": 1})


def read_run(folder: Path) -> object:
    found = RunConfig.read(folder), torchcaps.load(folder), MetricsFile(folder).read()
    return *found, load_latest(folder)


class Format(NamedTuple):
    """How good files are written into a folder, and how they are read."""

    write: Callable[[Path], None]
    read: Callable[[Path], object]


def table(name: str) -> Format:
    return Format(lambda folder: write_table(folder, name), lambda folder: load_data(folder / name))


def vectors(name: str) -> Format:
    return Format(lambda folder: write_vectors(folder, name), lambda folder: read_vectors(folder / name))


FORMATS = {
    "idx": Format(write_idx, load_data),
    "norb": Format(lambda folder: write_pairs(folder, size=12), load_data),
    "norb packed": Format(write_norb_packed, load_data),
    "cifar binary": Format(write_cifar_binary, load_data),
    "cifar archive": Format(write_cifar_archive, load_data),
    "cifar python": Format(write_cifar_pickles, load_data),
    "npz": Format(write_npz, lambda folder: load_data(folder / "set.npz")),
    "images": Format(write_images, load_data),
    **{name: table(name) for name in ("texts.csv", "texts.tsv", "texts.jsonl", "texts.txt", "texts.csv.gz")},
    "text folders": Format(write_text_folders, load_data),
    **{name: vectors(name) for name in ("vectors.npz", "vectors.bin", "vectors.txt")},
    "model": Format(write_model, torchcaps.load),
    "capsule model": Format(write_capsules, torchcaps.load),
    "text model": Format(write_text_model, torchcaps.load),
    "run": Format(write_run, read_run),
}

HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**12, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 3000, [], {}, [[]], "../../x"),
    *("subprocess:Popen", "nowhere:Nothing", "/etc/passwd", [1] * 1000, {"a": {"b": {}}}, "\ud800", 0.5, "9" * 400),
)


def mutate(content: bytes, choose: random.Random) -> bytes:
    """Cut, flipped, repeated, or with a number that claims too much."""
    kind = choose.choice(("cut", "flip", "flip", "huge", "huge", "repeat", "noise", "empty"))
    at = choose.randrange(len(content) + 1)
    if choose.random() < 0.5:
        at = min(at, choose.randrange(64))  # where headers are
    if kind == "cut":
        return content[:at]
    if kind == "flip" and content:
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


def mutate_inside(path: Path, choose: random.Random) -> bytes:
    """A file whose wrapping is right, so that its reader gets to what is wrong inside."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.compress(mutate(gzip.decompress(content), choose))
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        chosen = choose.choice(sorted(entries))
        entries[chosen] = mutate(entries[chosen], choose)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, entry in entries.items():
                archive.writestr(name, entry)
        return file.getvalue()
    if path.suffix == ".json":
        return json.dumps(mutate_value(json.loads(content), choose)).encode()
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", content[:8])
        header = json.dumps(mutate_value(json.loads(content[8 : 8 + size]), choose)).encode()
        return struct.pack("<Q", len(header)) + header + content[8 + size :]
    return mutate(content, choose)


def mutate_value(value: Any, choose: random.Random) -> Any:
    """JSON with one value replaced, left out or added."""
    if isinstance(value, dict | list) and value and choose.random() < 0.85:
        changed = dict(value) if isinstance(value, dict) else list(value)
        key = choose.choice(sorted(value)) if isinstance(value, dict) else choose.randrange(len(value))
        if choose.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate_value(value[key], choose)
        return changed
    if isinstance(value, dict) and choose.random() < 0.5:
        return value | {choose.choice(("routing", "routing_options", "name", "")): choose.choice(HOSTILE_VALUES)}
    return choose.choice(HOSTILE_VALUES)


class Watch:
    """Sees what the process does while a stranger's file is read: what it runs, writes and asks the network."""

    def __init__(self) -> None:
        self.is_on, self.seen, self.allowed = False, [], ""
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple) -> None:
        if not self.is_on:
            return
        is_change = event in ("os.remove", "os.rename", "os.mkdir", "os.symlink", "os.link", "os.truncate")
        if event == "open" and isinstance(arguments[0], str | bytes):
            is_change = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_change and os.fsdecode(arguments[0]).startswith(self.allowed):
            return
        if is_change or event.startswith((*RUNNING, "socket.")):
            self.seen.append(f"{event} {str(arguments)[:200]}")

    def during(self, read: Callable[[Path], object], folder: Path, allowed: Path) -> tuple[str | None, list[str]]:
        """What the reader says against the files, None if it reads them, and what it did that it must not."""
        self.seen, self.allowed, self.is_on = [], str(allowed), True
        try:
            read(folder)
            return None, self.seen
        except CLEAR as error:
            return str(error), self.seen
        finally:
            self.is_on = False


WATCH = Watch()


def peak_bytes(*, reset: bool = False) -> int:
    """The most memory that was resident since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def check(name: str, number: int, folder: Path, cache: Path) -> tuple[str | None, list[str]]:
    """Harm good files in a folder, read them, and say what the reader said and what of that is wrong."""
    choose = random.Random(f"{name} {number}")
    victim = choose.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    inside = choose.random() < 0.5
    victim.write_bytes(mutate_inside(victim, choose) if inside else mutate(victim.read_bytes(), choose))
    before, started, files = peak_bytes(reset=True), time.process_time(), set(folder.rglob("*"))
    try:
        refusal, wrong = WATCH.during(FORMATS[name].read, folder, cache)
    except Exception as error:
        return None, [f"{name} {number}: {type(error).__name__}: {error} ({victim.name})"]
    wrong = [f"it did {what}" for what in wrong]
    if refusal is not None and victim.name not in refusal and folder.name not in refusal:
        wrong.append(f"the refusal does not name the file: {refusal}")
    if (grown := peak_bytes() - before) > MOST_BYTES:
        wrong.append(f"it took {grown >> 20} MiB")
    if (seconds := time.process_time() - started) > MOST_SECONDS:
        wrong.append(f"it took {seconds:.1f} seconds")
    if new := set(folder.rglob("*")) - files:
        wrong.append(f"it wrote {sorted(map(str, new))}")
    return refusal, [f"{name} {number}: {what} ({victim.name})" for what in wrong]


def main() -> int:
    minutes, out = float(sys.argv[1]), Path(sys.argv[2])
    warnings.simplefilter("ignore")  # Pillow warns of odd files, and reads them
    counts = {name: Counter() for name in FORMATS}
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        os.environ["TORCHCAPS_CACHE"] = str(base / "cache")
        for name, form in FORMATS.items():
            (base / "good" / name).mkdir(parents=True)
            form.write(base / "good" / name)
            form.read(base / "good" / name)
        number = 0
        while time.process_time() < 60 * minutes:
            for name in FORMATS:
                folder = base / "data"
                shutil.copytree(base / "good" / name, folder)
                refusal, wrong = check(name, number, folder, base / "cache")
                counts[name]["wrong" if wrong else "read" if refusal is None else "refused"] += 1
                failures += wrong
                shutil.rmtree(folder)
            number += 1
    record = {
        "formats": {name: dict(sorted(count.items())) for name, count in counts.items()},
        "files": sum(count.total() for count in counts.values()),
        "failures": failures,
        "cpu_minutes": round(time.process_time() / 60, 1),
        "largest_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "environment": environment(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['files']} files, {len(failures)} failures", *failures[:20], sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
