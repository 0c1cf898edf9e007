"""Pairs of sentences that people judged: how alike they mean the same."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchcaps.data.home import folder_of
from torchcaps.data.text.decode import read_text

SICK = {"train": "SICK_train.txt.gz", "validation": "SICK_trial.txt.gz", "test": "SICK_test_annotated.txt.gz"}


class Pairs(NamedTuple):
    """Sentences, and how alike they are: what people said, the higher the more."""

    name: str
    first: list[str]
    second: list[str]
    scores: np.ndarray


def read_pairs(part: str = "test", folder: Path | None = None) -> list[Pairs]:
    """The sets of SemEval's task on textual similarity, 2012 to 2015, and SICK; pairs that nobody judged are left out.

    Args:
        part: "test", or "train": of 2012 and SICK alone.
        folder: of the files YEAR.SET.PART.tsv.gz and of SICK's; None is `sts` among the other data.
    """
    folder = folder or folder_of("sts", "YEAR.SET.test.tsv.gz, SICK_test_annotated.txt.gz")
    found = []
    for path in sorted(folder.glob(f"20*.{part}.tsv.gz")):
        rows = [line.split("\t") for line in read_text(path).split("\n") if line]
        found.append(_pairs(path.name.removesuffix(f".{part}.tsv.gz"), rows, path))
    if (path := folder / SICK[part]).is_file():
        rows = [line.split("\t") for line in read_text(path).split("\n")[1:] if line]
        found.append(_pairs("SICK", [[score, first, second] for _, first, second, score, *_ in rows], path))
    if not found:
        raise FileNotFoundError(f"{folder} holds no pairs of sentences for {part}")
    return found


def _pairs(name: str, rows: list[list[str]], path: Path) -> Pairs:
    if wrong := [number for number, row in enumerate(rows, 1) if len(row) < 3]:
        raise ValueError(f"{path}, line {wrong[0]}: expected a score and two sentences, with tabs between them")
    judged = [row for row in rows if row[0].strip()]
    try:
        scores = np.array([float(row[0]) for row in judged])
    except ValueError as error:
        raise ValueError(f"{path}: a score is no number: {error}") from error
    return Pairs(name, [row[1] for row in judged], [row[2] for row in judged], scores)
