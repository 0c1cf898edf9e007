"""What routing adds: networks with and without it side by side, from the results.json files of experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from building.experiments import recorded_experiments
from building.markdown import Cells, table


class Line(NamedTuple):
    """Where the figures of one line are: rows whose names start alike, and what was measured there."""

    title: str
    experiment: str
    prefix: str
    measured: str


def _attacked(title: str, group: str, attack: str, epsilon: float) -> Line:
    kind, _, where = attack.partition(" ")
    name = f"{title} under {' '.join(filter(None, [kind.upper(), where]))}, epsilon {epsilon:g}"
    return Line(name, "attacks", f"{group}: ", f"error under {attack}, epsilon {epsilon:g}, %")


# Columns, and what rows are called there after their prefix.
VECTOR = {
    "dynamic": ("dynamic, r = 3", "capsules"),
    "K-Means": ("K-Means, r = 2",),
    "entropy": ("entropy, r = 3",),
    "EM": ("EM, t = 3",),
    "uniform": ("uniform", "capsules, uniform"),
    "no routing": ("no routing",),
    "small CNN": ("CNN, small", "CNN, small (no routing)"),
}
MATRIX = {
    "EM, t = 2": ("EM, t = 2", "capsules, EM with t = 2", "MatrixCapsNet small, 68 K"),
    "uniform (t = 1)": ("EM, t = 1 (uniform)", "capsules, EM with t = 1 (uniform)", "small, EM with t = 1"),
    "no routing": ("no routing", "small, no routing"),
    "small CNN": ("CNN, small",),
    "4.2 M CNN": ("CNN, 4.2 M",),
}
TEXT = {
    "Capsule-A": ("Capsule-A",),
    "Capsule-B": ("Capsule-B",),
    "A, context": ("Capsule-A with context",),
    "Kim's CNN": ("Kim's CNN",),
    "BiLSTM": ("BiLSTM",),
    "no routing": ("no routing",),
    "TF-IDF, LR": ("TF-IDF and logistic regression",),
}
TEST, PAIRS, F1 = "test error, %", "pairs not both right, %", "100 - sample F1, %"
VECTOR_LINES = (
    Line("MNIST", "mnist-ablation", "", TEST),
    *(Line(f"MNIST, {size} digits", "mnist-ablation", f"{size} digits: ", TEST) for size in (100, 1000, 10_000)),
    Line("two digits, one over the other", "multi-digits", "overlapping: ", PAIRS),
    Line("two digits side by side, single ones learned", "multi-digits", "side by side: ", PAIRS),
    Line("placed digits", "affine", "", "clean error, %"),
    Line("distorted digits", "affine", "", "affine error, %"),
    Line("distorted digits, when as good as the CNN", "affine", "", "affine error when as good as the CNN, %"),
    Line(
        "distorted digits: the CNN when as good as these",
        "affine",
        "",
        "affine error of the CNN when as good as this, %",
    ),
    _attacked("MNIST", "digits", "fgsm", 0.1),
    _attacked("MNIST", "digits", "pgd", 0.1),
    _attacked("MNIST", "digits", "bim made on the small CNN", 0.2),
)
NOVEL = "novel viewpoints, error, %"
MATRIX_LINES = (
    Line("smallNORB", "hinton2018", "", TEST),
    *(
        Line(f"toys from new {where}{title}", "viewpoints", f"{factor}: ", measured)
        for factor, where in (("azimuth", "sides"), ("elevation", "heights"))
        for title, measured in (
            ("", NOVEL),
            (", when as good as the CNN", "novel viewpoints, error when as good as the CNN, %"),
            (": the CNN when as good as these", "novel viewpoints, error of the CNN when as good as this, %"),
        )
    ),
    Line("smallNORB, 5 epochs", "attacks", "toys: ", TEST),
    _attacked("the same", "toys", "fgsm", 0.01),
    _attacked("the same", "toys", "fgsm", 0.2),
    _attacked("the same", "toys", "pgd", 0.01),
    _attacked("the same", "toys", "bim made on the small CNN", 0.01),
)

TEXT_LINES = (
    *(
        Line(title, "zhao2018", f"{name}: ", TEST)
        for title, name in (
            ("TREC", "trec"),
            ("Subj", "subj"),
            ("MR", "mr"),
            ("SST-2", "sst-phrases"),
            ("AG's news", "agnews"),
            ("waimai", "waimai"),
        )
    ),
    *(Line(f"Reuters, {n} topics", "zhao2018", f"reuters-{n}: ", F1) for n in (8, 10)),
)


def vector_gains(results: Path) -> str:
    """Small vector networks on digits."""
    return gains(results, VECTOR_LINES, VECTOR)


def matrix_gains(results: Path) -> str:
    """Matrix networks on toys."""
    return gains(results, MATRIX_LINES, MATRIX)


def text_gains(results: Path) -> str:
    """Networks on texts."""
    return gains(results, TEXT_LINES, TEXT)


class Figure(NamedTuple):
    """What several seeds gave; a single one has no deviation."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ({self.deviation:.2f})")


def figures(results: Path) -> dict[tuple[str, str, str], Figure]:
    """By the experiment, the name of the row and what was measured."""
    return {
        (content["experiment"], kept["name"], kept["measured"]): Figure(kept["mean"], kept["deviation"])
        for content in recorded_experiments(results)
        for kept in (content["lines"] if content["scale"] == "full" else ())
        if kept["values"]
    }


def gains(results: Path, lines: Sequence[Line], columns: Mapping[str, Sequence[str]]) -> str:
    """A column for each kind of network; a line without any figure is left out, a missing figure is a dash.

    With several seeds the figure is their mean, with the standard deviation between them.
    """
    found = figures(results)

    def figure(line: Line, names: Sequence[str]) -> str:
        keys = ((line.experiment, line.prefix + name, line.measured) for name in names)
        return next((str(found[key]) for key in keys if key in found), "-")

    rows: list[Cells] = [(line.title, *(figure(line, names) for names in columns.values())) for line in lines]
    shown = [row for row in rows if any(cell != "-" for cell in row[1:])]
    return table(("error, %", *columns), shown, numeric_from=1)
