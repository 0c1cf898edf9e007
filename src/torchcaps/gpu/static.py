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
from typing import Any, NamedTuple
from unittest.mock import patch

import torch


class Target(NamedTuple):
    """A kind of GPU.

    Attributes:
        backend, architecture, warp: as Triton knows it.
        granule: registers are given to warps in such pieces.
        registers, shared, threads, blocks: of one multiprocessor; shared memory in bytes.
        reserved: bytes of shared memory that the driver takes of each block.
    """

    backend: str
    architecture: int | str
    warp: int
    granule: int
    registers: int
    shared: int
    threads: int
    blocks: int
    reserved: int


def _nvidia(architecture: int, shared: int, threads: int, blocks: int) -> Target:
    return Target("cuda", architecture, 32, 256, 65536, shared, threads, blocks, 1024)


TARGETS = {
    "sm_80": _nvidia(80, 167936, 2048, 32),
    "sm_86": _nvidia(86, 102400, 1536, 16),
    "sm_89": _nvidia(89, 102400, 1536, 24),
    "sm_90": _nvidia(90, 233472, 2048, 32),
    "sm_100": _nvidia(100, 233472, 2048, 32),
    "gfx942": Target("hip", "gfx942", 64, 512, 131072, 65536, 2048, 32, 0),
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

    def get_current_device(self) -> int | str:
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

    driver.set_active(_PaperDriver(GPUTarget(*TARGETS[target][:3])))  # pyrefly: ignore[bad-argument-type]
    JITFunction.__getitem__ = compile_only  # pyrefly: ignore[bad-assignment]
    try:
        with patch.object(torch.version, "hip", "on paper" if TARGETS[target].backend == "hip" else None):
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
    limits, warps, shared = TARGETS[target], compiled.metadata.num_warps, compiled.metadata.shared
    if compiled.hash not in known:
        known[compiled.hash] = (_registers_of_amd if limits.backend == "hip" else _registers)(compiled.asm)
    registers, spilled = known[compiled.hash]
    per_warp, threads = -(-registers * limits.warp // limits.granule) * limits.granule, warps * limits.warp
    blocks = min(
        limits.registers // (per_warp * warps),
        limits.shared // max(1, shared + limits.reserved),
        limits.threads // threads,
        limits.blocks,
    )
    return Launch(kernel, programs, registers, spilled, shared, threads, blocks * threads / limits.threads)


def _registers(code: dict[str, Any]) -> tuple[int, int]:
    """(registers, bytes of stack and local memory) of a thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code["cubin"])
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (_find(rf"{key}:(\d+)", text) for key in ("REG", "STACK", "LOCAL"))
    return registers, stack + local


def _registers_of_amd(code: dict[str, Any]) -> tuple[int, int]:
    """The same from the notes of the assembler: vector registers, and bytes of private memory."""
    text = code["amdgcn"]
    vector, accumulators = (_find(rf"\.{key}:\s*(\d+)", text) for key in ("vgpr_count", "agpr_count"))
    return max(vector, accumulators), _find(r"\.private_segment_fixed_size:\s*(\d+)", text)


def _find(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler tells no {pattern} of a kernel; this Triton is not the one that is known here")
    return int(found[1])


@contextmanager
def on_paper() -> Iterator[None]:
    """Inside the block tensors of the CPU stand for those of a GPU, so that `examine` sees the kernels of a call."""
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
