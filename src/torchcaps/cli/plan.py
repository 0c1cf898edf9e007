"""`torchcaps benchmark --plan`: what a network would cost, in words and a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcaps.checks import check_count, check_positive

if TYPE_CHECKING:
    from torchcaps.benchmark.plan import NetworkPlan

BACKENDS = ("fused", "chunked", "reference")
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What `--plan` asks for.

    Attributes:
        image_size, channels, classes: of the pictures and the answers.
        batch_size: of a step.
        option: arguments of the model, as name=value.
        gpu_tflops, gpu_gbps: peak rates of a GPU, None for none.
    """

    image_size: int
    channels: int
    classes: int
    batch_size: int
    option: tuple[str, ...]
    gpu_tflops: float | None
    gpu_gbps: float | None


def show_network_plan(model: str, asked: PlanOptions) -> None:
    """Print parameters, FLOP, bytes and times."""
    from rich.console import Console
    from rich.table import Table

    from torchcaps.benchmark.plan import plan_network
    from torchcaps.benchmark.roofline import measure_roofline
    from torchcaps.benchmark.settings import QUICK
    from torchcaps.cli.train import parse_option

    check_count("batch_size", asked.batch_size)
    if (asked.gpu_tflops is None) != (asked.gpu_gbps is None):
        raise ValueError("--gpu-tflops and --gpu-gbps go together; give both figures of the GPU")
    size = check_count("image_size", asked.image_size)
    options = dict(parse_option(option) for option in asked.option)
    found = plan_network(
        model, image_shape=(asked.channels, size, size), num_classes=check_count("classes", asked.classes), **options
    )
    console, roof = Console(highlight=False), measure_roofline(QUICK)
    rates = {"here": (roof.flops_per_second, roof.bytes_per_second)}
    if asked.gpu_tflops is not None and asked.gpu_gbps is not None:
        tera, giga = check_positive("gpu_tflops", asked.gpu_tflops), check_positive("gpu_gbps", asked.gpu_gbps)
        rates["GPU"] = (tera * 1e12, giga * 1e9)
    table = Table("backend", "kept of a picture", f"step of {asked.batch_size} needs")
    for place in rates:
        table.add_column(f"step {place}, at best", justify="right")
    for name in BACKENDS:
        times = [_duration(found.step_seconds(asked.batch_size, name, *rate)) for rate in rates.values()]
        table.add_row(name, _size(found.kept[name]), _size(found.memory(asked.batch_size, name)), *times)
    for line in _lines(found):
        console.print(line, soft_wrap=True)
    console.print(table)
    console.print(
        "A step is forward, backward and AdamW in float32. Times are limits that no step undercuts: the work at peak "
        f"rates, here {roof.flops_per_second / 1e9:.0f} GFLOP/s and {roof.bytes_per_second / 1e9:.0f} GB/s measured "
        "just now. What a network keeps decides what fits; compare backends with torchcaps benchmark, which runs them.",
        soft_wrap=True,
    )


def _lines(plan: "NetworkPlan") -> list[str]:
    channels, height, width = plan.image_shape
    share = 100 * plan.routing_flops / max(1, plan.flops)
    weights = _size(4 * plan.parameters)
    return [
        f"{plan.model} for {channels} x {height} x {width} and {plan.num_classes:,} classes",
        f"{plan.parameters:,} parameters ({weights}), {plan.flops / 1e9:.2f} GFLOP for a picture forward, "
        f"{share:.0f} % of them routing",
        f"votes, if formed: {_size(plan.formed)} of a picture",
    ]


def _size(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:.1f} MiB"


def _duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
