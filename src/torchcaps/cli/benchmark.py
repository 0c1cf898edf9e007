"""`torchcaps benchmark`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Check every backend against the float64 reference, then time what passed.

    Each case runs in a process of its own for each allocator setting (the default, and a heap that reuses its pages),
    so that all ratios come from one process. A backend whose values or gradients are wrong is never timed.
    """

    quick: bool = False
    """Smaller shapes, four cases unless named and no torch.compile: a look in under a minute, not figures to quote."""

    cases: tuple[str, ...] = ()
    """Only these cases, such as digitcaps em-conv-14 model-capsnet growth; all of them if left out."""

    out: Path | None = None
    """Write all figures, with machine, versions and command, to this JSON file; after every case what there is."""

    routing: str | None = None
    """A routing in dense layers on every backend that takes it: one that `torchcaps models` lists, or
    package.module:Class for one of your own."""

    threads: int | None = None
    """Threads to compute with; as many as torch takes by itself if left out."""

    neighbour: bool = False
    """Instead of the tables: one thread and several, alone and beside a process that computes without end and that this
    command starts and ends; every case forward and backward, and a training step of the small matrix network."""

    device: Literal["cpu", "cuda"] = "cpu"
    """With cuda: the Triton kernels on this GPU, checked first, beside eager torch, torch.compile and chunks."""

    static: str | None = None
    """With --device cuda: no GPU needed; compiles for this one, such as sm_80 or sm_90, and prints what is known."""

    plan: str | None = None
    """Run nothing: tell what this model of images would cost. Parameters, FLOP, bytes of a picture by backend, and the
    time of a step at best. However large it is, it takes no memory."""

    image_size: int | None = None
    """With --plan: height and width of the pictures; 32 if left out."""

    classes: int = 10
    """With --plan: number of classes."""

    channels: int = 3
    """With --plan: of the pictures."""

    batch_size: int = 32
    """With --plan: pictures of a step."""

    option: tuple[str, ...] = ()
    """With --plan: more arguments of the model as name=value, such as backbone=resnet-20 or head=matrix."""

    gpu_tflops: float | None = None
    """With --plan: peak rate of a GPU in float32, in TFLOP/s, to tell its time as well."""

    gpu_gbps: float | None = None
    """With --plan: bandwidth of the memory of that GPU, in GB/s."""

    def run(self) -> int:
        """Print the tables; 1 if a backend disagrees with the reference or a process failed."""
        if self.out is not None and not self.out.resolve().parent.is_dir():
            raise ValueError(f"the folder of --out {self.out} does not exist; create it first")

        if self.plan is not None:
            return self._plan(self.plan)
        if self.image_size is not None or self.option:
            raise ValueError("--image-size and --option tell of a network to plan; give --plan MODEL, too")
        if self.static is not None and self.device != "cuda":
            raise ValueError("--static tells of kernels of GPUs: give --device cuda, too")
        if self.neighbour and (self.device == "cuda" or self.routing):
            raise ValueError("--neighbour times our cases on the CPU: leave --device and --routing out")
        if self.device == "cuda":
            return self._run_on_gpu()

        from rich.console import Console

        from torchcaps.benchmark import MismatchError, report, run, run_neighbour
        from torchcaps.benchmark.settings import FULL, QUICK
        from torchcaps.storage import write_json

        def save(results: dict[str, Any]) -> None:
            if self.out is not None:
                write_json(self.out, results)

        console, progress = Console(), Console(stderr=True)
        settings = (QUICK if self.quick else FULL).with_threads(self.threads)
        with progress.status("checking every backend against the reference") as status:
            try:
                told: dict[str, Any] = {"names": self.cases, "tell": status.update, "save": save}
                if self.neighbour:
                    results = run_neighbour(settings, **told)
                else:
                    results = run(settings, routing=self.routing, **told)
            except MismatchError as mismatch:
                status.stop()
                console.print(report.verification_table(mismatch.checks))
                progress.print(f"torchcaps: {mismatch}")
                return 1
        if self.neighbour:
            console.print(report.environment_line(results["environment"]))
            console.print(report.neighbour_table(results))
        else:
            report.print_results(results, console)
        return 1 if report.failures(results) else 0

    def _plan(self, model: str) -> int:
        from torchcaps.cli.plan import PlanOptions, show_network_plan

        sizes = {"image_size": self.image_size or 32, "channels": self.channels, "classes": self.classes}
        rates = {"gpu_tflops": self.gpu_tflops, "gpu_gbps": self.gpu_gbps}
        show_network_plan(model, PlanOptions(**sizes, batch_size=self.batch_size, option=self.option, **rates))
        return 0

    def _run_on_gpu(self) -> int:
        from rich.console import Console

        from torchcaps.benchmark import MismatchError, report
        from torchcaps.benchmark.gpu import examine_static, run_on_gpu
        from torchcaps.storage import write_json

        console, progress = Console(), Console(stderr=True)
        with progress.status("starting") as status:
            if self.static is not None:
                status.update(f"compiling for {self.static}")
                results = {"static": examine_static(self.static, self.cases)}
            else:
                try:
                    results = run_on_gpu(self.cases, tell=status.update)
                except MismatchError as mismatch:
                    status.stop()
                    console.print(report.verification_table(mismatch.checks))
                    progress.print(f"torchcaps: {mismatch}")
                    return 1
        if self.out is not None:
            write_json(self.out, results)
        for table in report.gpu_tables(results):
            console.print(table)
        return 0
