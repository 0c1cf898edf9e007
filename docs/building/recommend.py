"""Recommendations, from results/interests/results.json and results/recommend-scaling/*.json."""

from pathlib import Path

from building.markdown import NOTHING, Cells, read, table

SHOWN = {
    "recall@20, %": "recall@20",
    "ndcg@20, %": "NDCG@20",
    "hit rate@20, %": "hit rate@20",
    "coverage@20, %": "coverage@20",
    "interests recovered, %": "interests recovered",
}


def interests(results: Path) -> str:
    """The mean over seeds, with the deviation between them, a table for each group; in per cent."""
    path = results / "interests" / "results.json"
    if not path.exists():
        return NOTHING
    lines = [line for line in read(path)["lines"] if line["values"]]
    text = []
    for group in dict.fromkeys(line["group"] for line in lines):
        of_group = [line for line in lines if line["group"] == group]
        cells = {(line["name"], line["measured"]): _cell(line) for line in of_group}
        shown = [name for name in SHOWN if any(measured == name for _, measured in cells)]
        rows: list[Cells] = [
            (name.split(": ")[-1], *(cells.get((name, measured), "-") for measured in shown))
            for name in dict.fromkeys(line["name"] for line in of_group)
        ]
        text += [f"**{group}**, %", "", table(("", *(SHOWN[name] for name in shown)), rows, numeric_from=1)]
    return "\n".join(text) or NOTHING


def _cell(line: dict) -> str:
    deviation = "" if line["deviation"] is None else f" ({line['deviation']:.1f})"
    return f"{line['mean']:.1f}{deviation}"


def recommend_scaling(results: Path) -> str:
    """What an epoch costs with more interactions."""
    rows: list[Cells] = []
    for path in sorted(results.glob("recommend-scaling/*.json")):
        for row in read(path)["rows"]:
            per = 1e6 * row["an epoch, CPU s"] / row["interactions"]
            cells = [row["reading, CPU s"], row["an epoch, CPU s"], round(per), row["testing, CPU s"], row["peak MB"]]
            rows.append((f"{row['interactions']:,}", f"{row['people']:,}", *map(str, cells)))
    headings = (
        "interactions",
        "people",
        "reading, s",
        "an epoch, s",
        "each interaction, µs",
        "testing, s",
        "peak memory, MB",
    )
    return table(headings, rows, numeric_from=0)
