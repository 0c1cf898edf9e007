"""`torchcaps benchmark`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Check every backend against the float64 reference, then time what passed.

    Each case runs in a process of its own for each allocator setting (the default, and a heap that reuses its pages),
    so that all ratios come from one process. A backend whose values or gradients are wrong is never timed.
    """

    quick: bool = False
    """Smaller shapes, four cases unless named and no torch.compile: a look in under a minute, not figures to quote."""

    cases: tuple[str, ...] = ()
    """Only these cases, such as digitcaps em-conv-14 model-capsnet; all of them if left out."""

    out: Path | None = None
    """Write all figures, with machine, versions and command, to this JSON file; after every case what there is."""

    routing: str | None = None
    """A routing in dense layers on every backend that takes it: one that `torchcaps models` lists, or
    package.module:Class for one of your own."""

    threads: int | None = None
    """Threads to compute with; as many as torch takes by itself if left out."""

    def run(self) -> int:
        """Print the tables; 1 if a backend disagrees with the reference or a process failed."""
        if self.out is not None and not self.out.resolve().parent.is_dir():
            raise ValueError(f"the folder of --out {self.out} does not exist; create it first")

        from rich.console import Console

        from torchcaps.benchmark import MismatchError, report, run
        from torchcaps.benchmark.settings import FULL, QUICK
        from torchcaps.storage import write_json

        def save(results: dict[str, Any]) -> None:
            if self.out is not None:
                write_json(self.out, results)

        console, progress = Console(), Console(stderr=True)
        settings = (QUICK if self.quick else FULL).with_threads(self.threads)
        with progress.status("checking every backend against the reference") as status:
            try:
                results = run(settings, names=self.cases, routing=self.routing, tell=status.update, save=save)
            except MismatchError as mismatch:
                status.stop()
                console.print(report.verification_table(mismatch.checks))
                progress.print(f"torchcaps: {mismatch}")
                return 1
        report.print_results(results, console)
        return 1 if report.failures(results) else 0
