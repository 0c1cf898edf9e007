"""`torchcaps data`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from torchcaps.data.load import Source
    from torchcaps.data.text import TextSource

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class List:
    """List the datasets that are known by name, and whether they are here."""

    def run(self) -> None:
        """Print the list."""
        from rich.console import Console
        from rich.table import Table

        table = Table("name", "what it holds", "here")
        for name, source in known().items():
            place = source.place or belongs_to(name)
            table.add_row(
                name, source.description, "embedded" if source.place else str(place) if place.exists() else "no"
            )
        Console().print(table)


@dataclass(frozen=True, kw_only=True)
class Info:
    """Say where a dataset comes from, under which terms, and which files it has."""

    name: Name
    """Name of a dataset; `torchcaps data list` lists them."""

    def run(self) -> None:
        """Print it."""
        from rich.console import Console

        from torchcaps.checks import check_choice
        from torchcaps.data.catalogue import CATALOGUE

        source = known()[check_choice("a dataset", self.name, known())]
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"{self.name}: {source.description}")
        console.print(f"origin: {source.origin}")
        console.print(f"terms:  {source.terms}")
        place = source.place or belongs_to(self.name)
        console.print(f"here:   {place if place.exists() else 'no'}")
        if self.name in CATALOGUE:
            distribution = CATALOGUE[self.name]
            console.print(f"files at {distribution.address}")
            for file in distribution.files:
                console.print(f"  {file.name}  {file.size:,} bytes  sha256 {file.sha256}")
            console.print(f"checksums: {distribution.checksums}")
            console.print(f"copies: {distribution.copies}")


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Download a dataset, or render the toys; a download that was stopped goes on where it stood."""

    name: Name
    """mnist, fashion-mnist, cifar10, smallnorb or toys."""

    out: Path | None = None
    """Folder of the files; by default $TORCHCAPS_DATA/NAME, or data/NAME without that variable."""

    mirror: str | None = None
    """Address of a folder that holds the same files, instead of the official one."""

    size: int = 48
    """Height and width of rendered toys, 48 or 96."""

    seed: int = 0
    """Of the shapes of rendered toys."""

    def run(self) -> None:
        """Fetch with a progress bar, and say what to do with the files."""
        from rich.console import Console

        from torchcaps.checks import check_choice
        from torchcaps.data.catalogue import CATALOGUE
        from torchcaps.data.fetch import fetch

        check_choice("a dataset to fetch", self.name, (*CATALOGUE, "toys"))
        folder, console = self.out or belongs_to(self.name), Console(highlight=False, soft_wrap=True)
        if self.name == "toys":
            from torchcaps.data.toys import write_toys

            if self.mirror is not None:
                raise ValueError("toys are rendered here, so --mirror means nothing for them")
            with bar(console, is_download=False) as progress:
                write_toys(folder, size=self.size, seed=self.seed, progress=lambda *done: progress("toys", *done))
        else:
            with bar(console, is_download=True) as progress:
                fetch(self.name, CATALOGUE[self.name], folder, mirror=self.mirror, progress=progress)
        console.print(f"{self.name} is in {folder}")
        console.print(f"look:  torchcaps data show {folder}")
        console.print(f"train: torchcaps train --data {folder}")


@dataclass(frozen=True, kw_only=True)
class Show:
    """Write a contact sheet of a dataset, images with their labels."""

    name: Name
    """Name or path of a dataset of images."""

    out: Path | None = None
    """The PNG file; by default NAME.png."""

    images: int = 100
    """How many images, at most."""

    test: bool = False
    """Show test images instead of training images."""

    def run(self) -> None:
        """Write the picture."""
        from torchcaps.checks import check_count
        from torchcaps.data import ImageSet, load_data
        from torchcaps.viz.contact_sheet import contact_sheet

        check_count("--images", self.images)
        data = load_data(self.name)
        part, kind = (data.test, "test") if self.test else (data.train, "training")
        if part is None:
            raise ValueError(f"{self.name} has no test images; leave out --test")
        if not isinstance(part, ImageSet):
            raise ValueError(f"{self.name} holds texts; only images can be shown")
        path = self.out or Path(f"{data.name}.png")
        title = f"{data.name}: some of {len(part):,} {kind} images"
        contact_sheet(part, num_images=self.images, title=title).savefig(path, dpi=150)
        print(f"contact sheet: {path}")


Action = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Fetch, tyro.conf.subcommand("fetch")]
    | Annotated[Show, tyro.conf.subcommand("show")]
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """List, describe, fetch and show datasets."""

    action: tyro.conf.OmitSubcommandPrefixes[Action]

    def run(self) -> None:
        """Do what was asked for."""
        self.action.run()


def known() -> "dict[str, Source | TextSource]":
    """All sets with a name, images before texts."""
    from torchcaps.data.load import SOURCES
    from torchcaps.data.text import SOURCES as TEXT_SOURCES

    return SOURCES | TEXT_SOURCES


def belongs_to(name: str) -> Path:
    """Where the files of a set belong."""
    from torchcaps.data.home import home
    from torchcaps.data.text import SOURCES as TEXT_SOURCES

    return home() / "text" / (TEXT_SOURCES[name].folder or name) if name in TEXT_SOURCES else home() / name


@contextmanager
def bar(console, *, is_download: bool) -> Iterator:
    """A progress bar with a line for each file; gives what to call with (name, done, total)."""
    from rich import progress as rich

    speed = [rich.DownloadColumn(), rich.TransferSpeedColumn()] if is_download else [rich.MofNCompleteColumn()]
    columns = [rich.TextColumn("{task.description}"), rich.BarColumn(), *speed, rich.TimeRemainingColumn()]
    with rich.Progress(*columns, console=console, transient=True) as lines:
        tasks: dict[str, rich.TaskID] = {}

        def update(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = lines.add_task(name, total=total)
            lines.update(tasks[name], completed=done, total=max(done, total))

        yield update
