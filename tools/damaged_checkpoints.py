"""Damage the checkpoints of a run at random places and resume it: is that noticed, and does it end with the same bits?

    python tools/damaged_checkpoints.py --places 200 --out results/reliability/checkpoints.json

A small run ends in the middle of its second epoch and leaves two checkpoints. One of them is cut at a random place,
or gets one wrong bit, anywhere or in the header, which a place drawn from the whole file would seldom meet. The run
is then resumed: if the last checkpoint is damaged, the one before it must be used, with a notice; if the one before
is, nobody needs it. In the end the weights must be those of the run that nobody disturbed. Where both are damaged,
resuming must end in a sentence. Then every bit of the header is turned, one after the other, and only read.
"""

import argparse
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data import ImageSet
from torchcaps.environment import environment
from torchcaps.models import create_model
from torchcaps.storage import write_json
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.checkpoint import LAST, PREVIOUS, CheckpointError, CheckpointNotice, load_state

CONFIG = TrainingConfig(epochs=2, batch_size=16, learning_rate=1e-2, checkpoint_minutes=1e-6)
STOP = 9  # of 12 steps
HEADER_START = 8  # after the length of the header


class End(Exception):
    """Of a run, without a word."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draws = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected, _ = resume(folder / "undisturbed")
        stopped = folder / "stopped"
        with suppress(End):
            resume(stopped, stop=STOP)
        rows = [damage_and_resume(stopped, folder / "damaged", expected, draws) for _ in range(arguments.places)]
        both = [damage_both(stopped, folder / "damaged", draws) for _ in range(arguments.places // 10)]
        header = turn_header(stopped, folder / "damaged")
    counts = Counter((row["file"], row["damage"], row["outcome"]) for row in rows)
    is_good = all(row["outcome"].endswith("same bits") for row in rows) and all(both) and not header["unnoticed"]
    result = {
        "environment": environment(),
        "seed": arguments.seed,
        "config": CONFIG.to_dict(),
        "places": len(rows),
        "all_good": is_good,
        "outcomes": [
            {"file": file, "damage": damage, "outcome": outcome, "count": count}
            for (file, damage, outcome), count in sorted(counts.items())
        ],
        "both_damaged": {"tried": len(both), "ended_in_a_sentence": sum(both)},
        "header": header,
        "rows": rows,
    }
    for entry in result["outcomes"]:
        print(entry)
    print(result["both_damaged"], header)
    if arguments.out:
        write_json(arguments.out, result)
    if not is_good:
        sys.exit("a damage was not noticed, or a run ended differently")


def resume(folder: Path, stop: int | None = None) -> tuple[dict[str, bytes], list[str]]:
    """Train in a folder, from where it stands; the weights at the end, and the notices on the way."""

    def on_event(event) -> None:
        if event.progress.step == stop and not event.is_epoch_end:
            raise End

    torch.manual_seed(0)
    model = create_model("matrix-capsnet-small", image_shape=(1, 19, 19), num_classes=2, channels=4, types=(2, 2, 2))
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", CheckpointNotice)
        fit(model, stripes(96, 0), stripes(32, 1), CONFIG, folder=folder, on_event=on_event)
    weights = {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
    return weights, [str(notice.message) for notice in notices if issubclass(notice.category, CheckpointNotice)]


def damage_and_resume(stopped: Path, place: Path, expected: dict[str, bytes], draws: random.Random) -> dict[str, Any]:
    """Damage one checkpoint of a copy at one place, and see how it ends."""
    copy(stopped, place)
    file = draws.choice((LAST, PREVIOUS))
    row = {"file": file} | damage(place / file, draws)
    try:
        weights, notices = resume(place)
    except CheckpointError as error:
        return row | {"outcome": f"not resumed: {error}"}
    if bool(notices) != (file == LAST):
        return row | {"outcome": "unnoticed"}
    used = "the one before was used" if notices else "not needed"
    return row | {"outcome": f"{used}, {'the same bits' if weights == expected else 'OTHER BITS'}"}


def damage_both(stopped: Path, place: Path, draws: random.Random) -> bool:
    """Whether two damaged checkpoints end in a sentence."""
    copy(stopped, place)
    for file in (LAST, PREVIOUS):
        damage(place / file, draws)
    try:
        resume(place)
    except CheckpointError as error:
        return str(error).startswith("no usable checkpoint: ")
    return False


def damage(path: Path, draws: random.Random) -> dict[str, Any]:
    """Cut a file at a random place, or turn one bit of it."""
    content = bytearray(path.read_bytes())
    kind = draws.choice(("cut", "a bit of the header", "a bit anywhere"))
    at = draws.randrange(header_end(content) if "header" in kind else len(content))
    if kind == "cut":
        del content[at:]
    else:
        content[at] ^= 1 << draws.randrange(8)
    path.write_bytes(content)
    return {"damage": kind, "at": at, "bytes": len(content)}


def turn_header(stopped: Path, place: Path) -> dict[str, Any]:
    """Turn every bit of the header of a checkpoint, one after the other; which are not noticed?"""
    copy(stopped, place)
    whole, unnoticed = (place / LAST).read_bytes(), []
    num_bits = 8 * header_end(whole)
    for bit in range(num_bits):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        (place / LAST).write_bytes(content)
        try:
            load_state(place / LAST)
            unnoticed.append(bit)
        except CheckpointError:
            pass
    return {"bits": num_bits, "unnoticed": unnoticed}


def header_end(content: bytes | bytearray) -> int:
    """Where the tensors begin in a safetensors file."""
    return HEADER_START + int.from_bytes(content[:HEADER_START], "little")


def copy(source: Path, target: Path) -> None:
    """A fresh copy of a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def stripes(num: int, seed: int) -> ImageSet:
    """Images with horizontal (class 0) or vertical (class 1) stripes and noise."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 2, num)
    pattern = (np.arange(19) % 4 < 2) * 160
    images = np.where(labels[:, None, None] == 0, pattern[:, None], pattern[None, :])
    images = (images + draws.integers(0, 90, (num, 19, 19))).astype(np.uint8)
    return ImageSet(images=images, labels=labels.astype(np.int64), class_names=("horizontal", "vertical"))


if __name__ == "__main__":
    main()
