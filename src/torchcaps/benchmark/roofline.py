"""What this machine could do at best, measured in the process that is timed."""

from dataclasses import dataclass

import torch

from torchcaps.benchmark.cases import Case
from torchcaps.benchmark.settings import Settings
from torchcaps.benchmark.timing import time_calls

BACKWARD_FACTOR = 3  # forward and backward together, as usual: two products for every one of the forward pass


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Peak rates: float32 matrix products, and copies of memory far beyond the caches (read and write counted)."""

    flops_per_second: float
    bytes_per_second: float

    def seconds(self, case: Case, *, backward: bool) -> float:
        """The time in which the case could be done at best: its least work at these rates, whichever takes longer."""
        factor = BACKWARD_FACTOR if backward else 1
        return factor * max(case.flops() / self.flops_per_second, case.bytes_moved() / self.bytes_per_second)


def measure_roofline(settings: Settings) -> Roofline:
    """Multiply and copy; the fastest window counts, as a roof is what can be reached."""
    side = 512 if settings.quick else 1536
    count = 32 * 2**20
    left, right, product = (torch.randn(side, side) for _ in range(3))
    source, target = torch.ones(count), torch.empty(count)
    timings = time_calls(
        {"multiply": lambda: torch.mm(left, right, out=product), "copy": lambda: target.copy_(source)}, settings
    )
    return Roofline(
        flops_per_second=2 * side**3 / timings["multiply"].best,
        bytes_per_second=2 * source.nbytes / timings["copy"].best,
    )
