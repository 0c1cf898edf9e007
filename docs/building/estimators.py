"""The text estimator beside counted words, from results/text-estimator/*.json."""

from pathlib import Path
from statistics import stdev

from building.markdown import NOTHING, Cells, read, table


def text_estimator(results: Path) -> str:
    """Means over splits, with the deviation between them, and how far ahead the estimator is of the better rival."""
    rows: list[Cells] = []
    for path in sorted(results.glob("text-estimator/*.json")):
        found = read(path)
        ours, rivals = found["capsules"]["accuracies"], {row["C"]: row["accuracies"] for row in found["tf-idf"]}
        best = min(found["points ahead"].values())
        rows.append((found["set"], f"{found['texts']:,}", *map(_cell, (ours, *rivals.values())), f"{best:+.1f}"))
    headings = ("set", "texts", "CapsuleTextClassifier", "TF-IDF, C = 1", "C = 10", "ahead of the better")
    return table(headings, rows, numeric_from=1) if rows else NOTHING


def _cell(accuracies: list[float]) -> str:
    mean = 100 * sum(accuracies) / len(accuracies)
    return f"{mean:.1f} ({100 * stdev(accuracies):.1f})" if len(accuracies) > 1 else f"{mean:.1f}"
