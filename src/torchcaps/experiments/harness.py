"""What every experiment is: named runs, what is measured of each, and the published figures to set beside them.

A run lies in a folder of its own, OUT/ROW/seed-N, and goes on where it was stopped; what is finished is not done again.
When all is done its records can be packed, see `torchcaps.experiments.archive`.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchcaps.experiments.archive import Place, all_runs, find_run
from torchcaps.models import Model
from torchcaps.models.registry import find_model
from torchcaps.predictor import load
from torchcaps.runs import CONFIG, ENVIRONMENT, MODEL, REPORT, RESULT, RunConfig, load_run_data, run
from torchcaps.storage import write_json
from torchcaps.training import Diverged, Event

MEASURES, METRICS = "measures.json", "metrics.jsonl"
TEST_ERROR, VALIDATION_ERROR = "test error, %", "validation error, %"

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchcaps.experiments.table import Line

    Draw = Callable[[Sequence[Line], str, str], Figure]

Scale = Literal["quick", "full"]
Measure = Callable[[Path], dict[str, float]]
Runner = Callable[[RunConfig, Path, Callable[[Event], None] | None], Any]


def test_error(folder: Path) -> dict[str, float]:
    """Share of test examples that the run got wrong."""
    return {TEST_ERROR: 100 * (1 - _read(folder / RESULT)["accuracy"])}


def validation_error(folder: Path) -> dict[str, float]:
    """Share of validation examples that the run got wrong, for choices: the test data stay unseen."""
    return {VALIDATION_ERROR: 100 * (1 - _read(folder / RESULT)["validation_accuracy"])}


def test_error_over_crops(num_crops: int) -> Measure:
    """The test error of the centre crop, and that of the mean over several crops of each image."""

    def measure(folder: Path) -> dict[str, float]:
        test = load_run_data(RunConfig.read(folder)).test
        assert test is not None
        is_right = load(folder).predict(test.inputs, crops=num_crops) == test.labels
        return test_error(folder) | {over_crops(num_crops): 100 * float(1 - is_right.mean())}

    return measure


def over_crops(num_crops: int) -> str:
    """The name of the test error over several crops."""
    return f"test error over {num_crops} crops, %"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a published table, or one of ours beside it.

    Attributes:
        name: unique within the experiment.
        config: the run; its seed is replaced.
        published: figures of the source by the name of what is measured, in the same unit.
        where: the place of the published figures in the source.
        group: rows of one group are compared with each other.
        measure: from a finished run's folder to figures, lower is better.
        run: leaves its configuration and result.json in a folder; by default a training run.
    """

    name: str
    config: RunConfig
    published: Mapping[str, float] = field(default_factory=dict)
    where: str = ""
    group: str = ""
    measure: Measure = test_error
    run: Runner = run

    @property
    def folder(self) -> str:
        """The name as a folder."""
        return row_folder(self.name)


def row_folder(name: str) -> str:
    """The folder of a row with this name."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A published table and how to fill it.

    Attributes:
        name: at the command line.
        title: what is found out.
        source: whose figures stand in the column "paper".
        data: name of the data at each scale; "quick" checks the machinery in minutes, "full" the claims.
        takes: how long one seed of all rows takes at each scale, on what.
        rows: from the scale and the name or path of the data to the rows.
        remark: what a reader of the table must know.
        draw: the figure, from the lines of the table, a title and a caption; bars unless it is given.
    """

    name: str
    title: str
    source: str
    data: Mapping[Scale, str]
    takes: Mapping[Scale, str]
    rows: Callable[[Scale, str], Sequence[Row]]
    remark: str = ""
    draw: "Draw | None" = None

    def choose_rows(self, scale: Scale, data: str | None = None, only: Sequence[str] = ()) -> list[Row]:
        """The rows whose name or group contains one of the given texts, in any case; all of them without any.

        The whole name of a row stands for this row alone, although others may begin with it.
        """
        rows = list(self.rows(scale, data or self.data[scale]))
        assert len({row.folder for row in rows}) == len(rows), "two rows would share a folder"
        chosen: set[str] = set()
        for text in only:
            found = {row.name for row in rows if row.name == text}
            found = found or {row.name for row in rows if text.lower() in f"{row.group}: {row.name}".lower()}
            if not found:
                raise ValueError(
                    f"no row of {self.name} contains {text!r}; there are {'; '.join(r.name for r in rows)}"
                )
            chosen |= found
        return [row for row in rows if not only or row.name in chosen]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that came to its end; one that diverged has no figures but the reason."""

    row: Row
    config: RunConfig
    measures: Mapping[str, float]
    result: Mapping[str, Any]
    diverged: str | None = None

    @property
    def minutes(self) -> float:
        """Of training."""
        return self.result.get("seconds", 0.0) / 60


def run_rows(
    rows: Sequence[Row],
    folder: Path,
    *,
    num_seeds: int = 1,
    first_seed: int = 0,
    reuse: Sequence[Path] = (),
    on_start: Callable[[Row, int], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_finish: Callable[[Finished], None] | None = None,
) -> list[Finished]:
    """Run what is not finished yet: every row with the first seed, then every row with the next.

    Args:
        rows: what to run.
        folder: of the experiment.
        num_seeds: how many seeds of every row.
        first_seed: the seeds are this one and those that follow.
        reuse: folders of other experiments; a run that was trained there, or for another row here, with the same
            configuration is taken from there.
        on_start: told which row and seed comes next.
        on_event: told of every step of a run.
        on_finish: told of every run that was trained here.
    """
    finished = []
    for seed in range(first_seed, first_seed + num_seeds):
        for row in rows:
            done = read_run(row, seed, folder)
            if done is None:
                if on_start is not None:
                    on_start(row, seed)
                done = _run_row(row, seed, folder, [folder, *reuse], on_event)
                if on_finish is not None:
                    on_finish(done)
            finished.append(done)
    return finished


def finished_runs(rows: Sequence[Row], folder: Path) -> list[Finished]:
    """What was finished in a folder, whatever the seed."""
    found: list[Finished] = []
    kept = [(name, int(seed)) for name, _, seed in (run.partition("/seed-") for run in all_runs(folder, MEASURES))]
    for row in rows:
        seeds = sorted(seed for name, seed in kept if name == row.folder)
        found += [done for seed in seeds if (done := read_run(row, seed, folder)) is not None]
    return found


def read_run(row: Row, seed: int, folder: Path) -> Finished | None:
    """A finished run; None if it is not."""
    place, config = find_run(folder, row.folder, f"seed-{seed}", MEASURES), with_seed(row.config, seed)
    if place is None:
        return None
    if not _is_same(RunConfig.read(place), config):
        raise ValueError(f"{place} holds another run than {row.name!r} is today; give another folder with --out")
    kept = _read(place / MEASURES)
    result = _read(place / RESULT) if (place / RESULT).exists() else {}
    return Finished(row=row, config=config, measures=kept["measures"], result=result, diverged=kept["diverged"])


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The same run with another seed."""
    return replace(config, training=replace(config.training, seed=seed))


def _is_same(recorded: RunConfig, config: RunConfig) -> bool:
    """Whether both mean the same run: the weight of a model's own may be written out in one of them."""
    first, second = recorded.training.reconstruction_weight, config.training.reconstruction_weight
    if first != second and None in (first, second):
        model_class = find_model(config.model) if config.model else Model
        if (second if first is None else first) != model_class.reconstruction_weight:
            return False
        recorded = replace(recorded, training=replace(recorded.training, reconstruction_weight=second))
    return recorded == config


def take_run(config: RunConfig, folders: Sequence[Path], place: Path) -> bool:
    """Copy a finished training run with this configuration from the folders of other experiments, if there is one."""
    recorded = [(folder / name, records) for folder in folders for name, records in all_runs(folder, RESULT).items()]
    for path, records in recorded:  # weights are never packed
        is_plain = "kind" in _read(records / RESULT) and (path / MODEL).is_dir()  # other ways may train on other data
        if is_plain and path != place and _is_same(RunConfig.read(records), config):
            shutil.copytree(path / MODEL, place / MODEL, dirs_exist_ok=True)
            if (path / REPORT).exists():
                shutil.copy(path / REPORT, place / REPORT)
            for record in (CONFIG, ENVIRONMENT, METRICS, RESULT):
                if (records / record).exists():
                    (place / record).write_bytes((records / record).read_bytes())
            return True
    return False


def _run_row(
    row: Row, seed: int, folder: Path, reuse: Sequence[Path], on_event: Callable[[Event], None] | None
) -> Finished:
    place, config, measures, reason = _place(row, seed, folder), with_seed(row.config, seed), {}, None
    try:
        if row.run is not run or not take_run(config, reuse, place):
            row.run(config, place, on_event)
        measures = row.measure(place)
    except Diverged as error:  # a finding, and no reason to stop the other rows
        reason = str(error)
    write_json(place / MEASURES, {"measures": measures, "diverged": reason})
    done = read_run(row, seed, folder)
    assert done is not None
    return done


def _place(row: Row, seed: int, folder: Path) -> Path:
    return folder / row.folder / f"seed-{seed}"


def _read(path: Place) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
