"""Published figures beside ours, from the results.json files that `torchcaps reproduce` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from building.markdown import NOTHING, Cells, read, table

MANY = 6  # figures of a row, from which rows become columns


def recorded_experiments(results: Path) -> list[dict[str, Any]]:
    found = [read(path) for path in sorted(results.glob("**/results.json"))]
    return [content for content in found if "experiment" in content and "lines" in content]


def experiment_tables(results: Path) -> str:
    """Every recorded table: the published figure beside ours; rows that were not run are left out."""
    text = []
    for content in recorded_experiments(results):
        lines = [line for line in content["lines"] if line["values"] or line["num_diverged"]]
        if not lines:
            continue
        text += [f"### {content['experiment']} on {content['data']}", ""]
        for group in dict.fromkeys(line["group"] for line in lines):
            text += [f"**{group}**", ""] if group else []
            of_group = [line for line in lines if line["group"] == group]
            many = len(of_group) >= MANY * len({line["name"] for line in of_group})
            headings, rows = _by_measure(of_group) if many else _by_row(of_group)
            text.append(table(headings, rows, numeric_from=1 if many else 2))
        quick = "A quick run: it checks the machinery, not the claims." if content["scale"] == "quick" else ""
        caption = " ".join(filter(None, [f"Paper: {content['source']}.", quick, content["remark"], content["note"]]))
        text += [caption, ""]
    return "\n".join(text) or NOTHING


def _by_row(lines: Sequence[dict[str, Any]]) -> tuple[Cells, list[Cells]]:
    rows: list[Cells] = []
    for line in lines:
        minutes = "-" if line["minutes"] is None else f"{line['minutes']:.0f}"
        rows.append(
            (line["name"], line["measured"] or "-", _paper(line), _ours(line), str(len(line["values"])), minutes)
        )
    return ("row", "measured", "paper", "ours (sd)", "seeds", "minutes"), rows


def _by_measure(lines: Sequence[dict[str, Any]]) -> tuple[Cells, list[Cells]]:
    """A column for each row of the experiment, for those of which much is measured."""
    cells = {(line["measured"], line["name"]): _ours(line) for line in lines}
    papers = {
        line["measured"]: f"{line['name'].split(': ')[-1]}, {_paper(line)}"
        for line in lines
        if line["published"] is not None
    }
    names = list(dict.fromkeys(line["name"] for line in lines))
    rows: list[Cells] = []
    for measured in dict.fromkeys(line["measured"] for line in lines):
        what = f"{measured} (paper: {papers[measured]})" if measured in papers else measured
        rows.append((what, *(cells.get((measured, name), "-") for name in names)))
    return ("ours (sd)", *(name.split(": ")[-1] for name in names)), rows


def _paper(line: dict[str, Any]) -> str:
    place = f" ({line['where']})" if line["where"] else ""
    return "-" if line["published"] is None else f"{line['published']:g}{place}"


def _ours(line: dict[str, Any]) -> str:
    ours = "-" if line["mean"] is None else f"{line['mean']:.2f}"
    ours += "" if line["deviation"] is None else f" ({line['deviation']:.2f})"
    return ours + (f", {line['num_diverged']} diverged" if line["num_diverged"] else "")


def reproducible() -> str:
    """What `torchcaps reproduce` can do."""
    from torchcaps.experiments import EXPERIMENTS, find_experiment

    rows = []
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        full, quick = experiment.data["full"], experiment.data["quick"]
        rows.append((f"`{name}`", experiment.title, experiment.source, full, experiment.takes["full"], quick))
    headings = ("name", "what is found out", "source", "data, full", "takes, full", "data, quick")
    return table(headings, rows)
