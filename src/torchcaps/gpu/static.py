"""Kernels compiled for a GPU that need not be there: which a call starts, and what each occupies.

Every launch of a call is compiled exactly as it would be on the GPU, under a driver that knows its target and nothing
else; results are garbage and not looked at.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = {"sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_100": 100}
# registers, bytes of shared memory, threads and blocks of one multiprocessor; 1 KiB of each block is the driver's
LIMITS = {
    "sm_80": (65536, 167936, 2048, 32),
    "sm_86": (65536, 102400, 1536, 16),
    "sm_89": (65536, 102400, 1536, 24),
    "sm_90": (65536, 233472, 2048, 32),
    "sm_100": (65536, 233472, 2048, 32),
}


@dataclass(frozen=True)
class Launch:
    """One kernel of a call.

    Attributes:
        kernel: its name.
        programs: how many are started.
        registers: of a thread. spilled: bytes of a thread that did not fit.
        shared: bytes of shared memory of a program.
        occupancy: share of the threads of a multiprocessor that fit at a time.
    """

    kernel: str
    programs: int
    registers: int
    spilled: int
    shared: int
    threads: int
    occupancy: float


class _PaperDriver:
    """Knows its target and nothing else."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def dry_run(target: str) -> Iterator[list[tuple[str, int, Any]]]:
    """Inside the block a launch only compiles; gathers (kernel, programs, what was compiled)."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    gathered: list[tuple[str, int, Any]] = []
    launch, before = JITFunction.__getitem__, driver._active

    def compile_only(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            programs = 1
            for size in grid:
                programs *= size
            gathered.append((kernel.__name__, programs, kernel.warmup(*arguments, grid=grid, **options)))

        return call

    driver.set_active(_PaperDriver(GPUTarget("cuda", TARGETS[target], 32)))  # pyrefly: ignore[bad-argument-type]
    JITFunction.__getitem__ = compile_only  # pyrefly: ignore[bad-assignment]
    try:
        yield gathered
    finally:
        JITFunction.__getitem__ = launch
        driver._active = before


def examine(target: str, call: Callable[[], Any]) -> list[Launch]:
    """The launches of a call, in their order."""
    with dry_run(target) as gathered:
        call()
    known: dict[str, tuple[int, int]] = {}
    return [_describe(target, kernel, programs, compiled, known) for kernel, programs, compiled in gathered]


def _describe(target: str, kernel: str, programs: int, compiled: Any, known: dict[str, tuple[int, int]]) -> Launch:
    threads, shared = compiled.metadata.num_warps * 32, compiled.metadata.shared
    if compiled.hash not in known:
        known[compiled.hash] = _registers(compiled.asm["cubin"])
    registers, spilled = known[compiled.hash]
    all_registers, all_shared, all_threads, most_blocks = LIMITS[target]
    per_warp = -(-registers * 32 // 256) * 256
    blocks = min(
        all_registers // (per_warp * (threads // 32)),
        all_shared // (shared + 1024),
        all_threads // threads,
        most_blocks,
    )
    return Launch(kernel, programs, registers, spilled, shared, threads, blocks * threads / all_threads)


def _registers(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack and local memory) of a thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL"))  # pyrefly: ignore
    return registers, stack + local


@contextmanager
def on_paper() -> Iterator[None]:
    """Inside the block tensors of the CPU stand for those of a GPU, so that `examine` sees the kernels of a call."""
    from unittest.mock import patch

    from torchcaps.gpu import availability
    from torchcaps.gpu.em import TritonEm
    from torchcaps.gpu.softmax import TritonSoftmax
    from torchcaps.routing.ops import bodies

    stand_in = {("softmax", "cpu"): TritonSoftmax(), ("em", "cpu"): TritonEm()}
    with (
        patch.object(bodies, "_bodies", stand_in),
        patch.object(availability, "why_not_device", lambda index: None),
    ):
        yield
