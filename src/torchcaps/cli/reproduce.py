"""`torchcaps reproduce`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from rich.console import Console

    from torchcaps.experiments.harness import Experiment, Finished, Row, Scale
    from torchcaps.experiments.table import Line


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Do published experiments again and set our figures beside the published ones.

    Without a name: list the experiments, the data each needs and how long it takes. With a name alone: show its rows.
    An experiment that was stopped goes on where it stood; what is finished is not done again.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """Name of an experiment."""

    quick: bool = False
    """Few small pictures and short runs: checks the machinery in minutes, not the claims."""

    full: bool = False
    """The data and the training times of the table."""

    seeds: int = 1
    """Seeds of every row; every row is run with the first before any is with the next."""

    first_seed: int = 0
    """The first of the seeds, so that several machines can share the work."""

    out: Path | None = None
    """Folder of runs, table and figure; by default runs/NAME-quick or runs/NAME-full."""

    only: tuple[str, ...] = ()
    """Run only rows whose group or name contains one of these texts, or the one row that has it as its whole name; the
    table shows all that are finished."""

    data: str | None = None
    """Name or path of the data, instead of the experiment's own."""

    reuse: tuple[Path, ...] = ()
    """Folders of other experiments: what was trained there with the same configuration is not trained again."""

    note: str = ""
    """A sentence to be saved with table and figure, such as what is special about the data; without one, the sentence
    that was saved before stays."""

    pack: bool = False
    """Run nothing: move the records of finished runs into one archive, from which the experiment goes on as well."""

    def run(self) -> int:
        """Run what is missing; 130 if interrupted."""
        from rich.console import Console

        from torchcaps.checks import check_count
        from torchcaps.experiments import find_experiment

        console = Console(highlight=False)
        if self.name is None:
            list_experiments(console)
            return 0
        experiment = find_experiment(self.name)
        if self.quick and self.full:
            raise ValueError("--quick and --full exclude each other; give one of them")
        check_count("--seeds", self.seeds)
        check_count("--first-seed", self.first_seed, least=0)
        scale: Scale = "quick" if self.quick else "full"
        folder = self.out or Path("runs") / f"{self.name}-{scale}"
        if self.pack:
            pack_runs(console, folder)
            return 0
        rows = experiment.choose_rows(scale, self.data)
        if not self.quick and not self.full:
            show_plan(console, experiment, experiment.choose_rows(scale, self.data, self.only), folder)
            return 0
        return self.fill_table(console, experiment, rows, scale, folder)

    def fill_table(
        self, console: "Console", experiment: "Experiment", rows: "list[Row]", scale: "Scale", folder: Path
    ) -> int:
        """Run the chosen rows, then print and save the table of all that are finished."""
        from torchcaps.cli.notices import notices
        from torchcaps.experiments.harness import finished_runs, run_rows
        from torchcaps.experiments.table import FIGURE, TABLE, save_table
        from torchcaps.training import Interrupted
        from torchcaps.training.progress import TrainingProgress

        chosen, data = experiment.choose_rows(scale, self.data, self.only), self.data or experiment.data[scale]

        def save() -> "list[Line]":
            finished = finished_runs(rows, folder)
            return save_table(experiment, rows, finished, folder, scale=scale, data=data, note=self.note)

        def on_finish(done: "Finished") -> None:
            console.print(outcome(done), soft_wrap=True)
            save()

        try:
            with notices(console), TrainingProgress(console) as progress:
                run_rows(
                    chosen,
                    folder,
                    num_seeds=self.seeds,
                    first_seed=self.first_seed,
                    reuse=self.reuse,
                    on_start=lambda row, seed: console.print(f"[bold]{row.name}[/bold], seed {seed}", soft_wrap=True),
                    on_event=progress.on_event,
                    on_finish=on_finish,
                )
        except Interrupted:
            console.print("stopped; the same command goes on where it stopped", soft_wrap=True)
            return 130
        lines = save()
        print_table(console, experiment, lines)
        console.print(f"table:  {folder / TABLE}", soft_wrap=True)
        console.print(f"figure: {folder / FIGURE}", soft_wrap=True)
        return 0


def pack_runs(console: "Console", folder: Path) -> None:
    """Pack what is finished, and say so."""
    from torchcaps.experiments.archive import ARCHIVE, pack
    from torchcaps.experiments.harness import MEASURES

    num_runs = pack(folder, MEASURES)
    if num_runs == 0:
        raise ValueError(f"there is no finished run in {folder} that is not packed; give another folder with --out")
    console.print(f"the records of {num_runs} runs are in {folder / ARCHIVE}", soft_wrap=True)


def outcome(done: "Finished") -> str:
    """The figures of a run in one line."""
    if done.diverged is not None:
        return f"diverged: {done.diverged}"
    return ", ".join(f"{name} {value:.2f}" for name, value in done.measures.items()) + f" ({done.minutes:.1f} minutes)"


def list_experiments(console: "Console") -> None:
    """Print what can be reproduced."""
    from rich.table import Column, Table

    from torchcaps.experiments import EXPERIMENTS, find_experiment

    table = Table(Column("experiment", no_wrap=True), "what it finds out", "--quick", "--full")
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        needs = [f"{experiment.data[scale]}: {experiment.takes[scale]}" for scale in ("quick", "full")]
        table.add_row(name, experiment.title, *needs)
    console.print(table)
    console.print("data by name lie in $TORCHCAPS_DATA, or in data/: torchcaps data fetch NAME", soft_wrap=True)


def show_plan(console: "Console", experiment: "Experiment", rows: "Sequence[Row]", folder: Path) -> None:
    """Print the rows with what is published and what is finished, and how to start."""
    from torchcaps.experiments.harness import finished_runs
    from torchcaps.experiments.table import make_lines

    print_table(console, experiment, make_lines(rows, finished_runs(rows, folder)))
    for scale in ("quick", "full"):
        console.print(
            f"torchcaps reproduce {experiment.name} --{scale}: {experiment.data[scale]}, {experiment.takes[scale]}",
            soft_wrap=True,
        )


def print_table(console: "Console", experiment: "Experiment", lines: "Sequence[Line]") -> None:
    """Print the table, its groups apart."""
    from rich.table import Table

    from torchcaps.experiments.table import HEADINGS

    table = Table(title=f"{experiment.name}: {experiment.title}", caption=f"paper: {experiment.source}")
    for number, heading in enumerate(HEADINGS):
        table.add_column(
            heading, justify="left" if number < 2 else "right", overflow="fold" if number == 0 else "ellipsis"
        )
    group = ""
    for line in lines:
        if line.group != group:
            group = line.group
            table.add_section()
            table.add_row(f"[bold]{group}[/bold]")
        table.add_row(*line.cells())
    console.print(table)
