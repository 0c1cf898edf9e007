"""The table "paper | ours (mean, sd, n) | parameters | minutes", as text, as JSON and as a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from torchcaps.environment import environment
from torchcaps.experiments.harness import Experiment, Finished, Row
from torchcaps.storage import write_json
from torchcaps.viz.comparison import Bar, comparison

TABLE, RESULTS, FIGURE = "table.md", "results.json", "figure.png"
HEADINGS = ("", "measured", "paper", "ours", "sd", "n", "parameters", "minutes")
MOST_BARS = 80  # of the figure


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure of one row, over all seeds that are finished."""

    group: str
    name: str
    measured: str
    published: float | None
    where: str
    values: tuple[float, ...]
    num_diverged: int
    parameters: int | None
    minutes: float | None

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Between seeds; there is none of a single one."""
        return stdev(self.values) if len(self.values) > 1 else None

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of HEADINGS."""
        diverged = f" ({self.num_diverged} diverged)" if self.num_diverged else ""
        return (
            self.name,
            self.measured,
            _text(self.published),
            _text(self.mean) + diverged,
            _text(self.deviation),
            str(len(self.values)),
            "-" if self.parameters is None else f"{self.parameters:,}",
            _text(self.minutes, 1),
        )


def make_lines(rows: Sequence[Row], finished: Sequence[Finished]) -> list[Line]:
    """The lines of a table: one for each figure of a row, measured or published."""
    lines = []
    for row in rows:
        runs = [done for done in finished if done.row.name == row.name]
        names = dict.fromkeys([*(name for done in runs for name in done.measures), *row.published]) or {"": None}
        lines += [
            Line(
                group=row.group,
                name=row.name,
                measured=name,
                published=row.published.get(name),
                where=row.where if name in row.published else "",
                values=tuple(done.measures[name] for done in runs if name in done.measures),
                num_diverged=sum(done.diverged is not None for done in runs),
                parameters=runs[0].result.get("parameters") if runs else None,
                minutes=mean(done.minutes for done in runs) if runs else None,
            )
            for name in names
        ]
    return lines


def save_table(
    experiment: Experiment,
    rows: Sequence[Row],
    finished: Sequence[Finished],
    folder: Path,
    *,
    scale: str,
    data: str,
    note: str = "",
) -> list[Line]:
    """Write table.md, figure.png, and results.json with the configuration of every run; gives the lines.

    Without a note, that of an earlier results.json stays.
    """
    lines, note = make_lines(rows, finished), note or earlier_note(folder)
    caption = footnote(experiment, scale=scale, data=data, note=note)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE).write_text(markdown(experiment, lines, caption), encoding="utf-8")
    draw = experiment.draw or draw_bars
    draw(lines, f"{experiment.name}: {experiment.title}", caption).savefig(
        folder / FIGURE, dpi=120, bbox_inches="tight"
    )
    values = {
        "experiment": experiment.name,
        "scale": scale,
        "data": data,
        "source": experiment.source,
        "remark": experiment.remark,
        "note": note,
        "lines": [asdict(line) | {"mean": line.mean, "deviation": line.deviation} for line in lines],
        "runs": [
            {"row": done.row.name, "seed": done.config.training.seed, "measures": dict(done.measures)}
            | {"diverged": done.diverged, "result": dict(done.result), "config": asdict(done.config)}
            for done in finished
        ],
        "environment": environment(),
    }
    write_json(folder / RESULTS, values)
    return lines


def draw_bars(lines: Sequence[Line], title: str, caption: str) -> Figure:
    """What was measured beside what was published."""
    bars = [
        Bar(line.group, f"{line.name}: {line.measured}", line.mean, line.deviation or 0.0, line.published)
        for line in drawn_lines(lines)
    ]
    return comparison(bars, title=title, caption=caption)


def earlier_note(folder: Path) -> str:
    """What was noted when the table was written before, so that a run that goes on does not lose it."""
    path = folder / RESULTS
    return json.loads(path.read_text(encoding="utf-8")).get("note", "") if path.exists() else ""


def drawn_lines(lines: Sequence[Line]) -> list[Line]:
    """What the figure shows: percents, since seconds beside them would hide them; of very many, a row's first alone."""
    percents = [line for line in lines if line.measured.endswith("%")]
    if len(percents) <= MOST_BARS:
        return percents
    first = {line.name: line for line in reversed(percents)}
    return [line for line in percents if line is first[line.name] or line.published is not None]


def footnote(experiment: Experiment, *, scale: str, data: str, note: str = "") -> str:
    """Where the figures come from."""
    ours = f"Ours: {data}, {'quick: this checks the machinery, not the claims' if scale == 'quick' else 'full'}."
    return " ".join(filter(None, [f"Paper: {experiment.source}.", ours, experiment.remark, note]))


def markdown(experiment: Experiment, lines: Sequence[Line], caption: str) -> str:
    """The table as Markdown, a heading for each group."""
    text, group = [f"# {experiment.name}: {experiment.title}", ""], None
    for line in lines:
        if line.group != group:
            group = line.group
            text += [*([""] if len(text) > 2 else []), *([f"## {group}", ""] if group else [])]
            text += ["| " + " | ".join(HEADINGS) + " |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
        name, measured, published, *ours = line.cells()
        place = f" ({line.where})" if line.where else ""
        text.append("| " + " | ".join([name, measured, published + place, *ours]) + " |")
    return "\n".join([*text, "", caption, ""])


def _text(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
