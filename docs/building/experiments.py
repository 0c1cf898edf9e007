"""Published figures beside ours, from the results.json files that `torchcaps reproduce` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from building.markdown import NOTHING, Cells, read, table


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
            text.append(table(*_experiment_rows([line for line in lines if line["group"] == group]), numeric_from=2))
        quick = "A quick run: it checks the machinery, not the claims." if content["scale"] == "quick" else ""
        caption = " ".join(filter(None, [f"Paper: {content['source']}.", quick, content["remark"], content["note"]]))
        text += [caption, ""]
    return "\n".join(text) or NOTHING


def _experiment_rows(lines: Sequence[dict[str, Any]]) -> tuple[Cells, list[Cells]]:
    rows: list[Cells] = []
    for line in lines:
        place = f" ({line['where']})" if line["where"] else ""
        published = "-" if line["published"] is None else f"{line['published']:g}{place}"
        ours = "-" if line["mean"] is None else f"{line['mean']:.2f}"
        ours += "" if line["deviation"] is None else f" ({line['deviation']:.2f})"
        ours += f", {line['num_diverged']} diverged" if line["num_diverged"] else ""
        minutes = "-" if line["minutes"] is None else f"{line['minutes']:.0f}"
        rows.append((line["name"], line["measured"] or "-", published, ours, str(len(line["values"])), minutes))
    return ("row", "measured", "paper", "ours (sd)", "seeds", "minutes"), rows


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
