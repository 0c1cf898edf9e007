"""Tables in Markdown."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NOTHING = "Nothing has been recorded for this table yet.\n"

Cells = Sequence[str]


def table(headings: Cells, rows: Iterable[Cells], numeric_from: int | None = None) -> str:
    """A Markdown table, or a sentence if it would be empty."""
    rows = list(rows)
    if not rows:
        return NOTHING
    rule = ["---:" if numeric_from is not None and number >= numeric_from else "---" for number in range(len(headings))]
    lines = [headings, rule, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def without_repeats(rows: Iterable[Cells]) -> list[Cells]:
    """The first cell only where it changes."""
    shown, before = [], None
    for first, *others in rows:
        shown.append(("" if first == before else first, *others))
        before = first
    return shown


def routing_label(routing: str | None, options: dict[str, Any]) -> str:
    more = [f"{value} iterations" if name == "num_iterations" else f"{name} {value}" for name, value in options.items()]
    return ", ".join([str(routing), *more])


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
