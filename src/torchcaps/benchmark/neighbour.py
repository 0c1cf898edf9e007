"""What threads are worth beside a process that wants a core: one thread and several, alone and with a neighbour.

Every call is timed four times in one process: with one thread and with several, while nothing else is started and while
one process of our own computes without end. Where threads wait for each other by spinning, several are slower than one
beside a neighbour; the bar is that they never take more than `BAR` times as long.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torchcaps.benchmark.cases import FASTEST, Case
from torchcaps.benchmark.settings import Settings
from torchcaps.benchmark.workload import Workload
from torchcaps.losses import spread_loss
from torchcaps.models import create_model

BAR = 1.25
THREADS = 2  # where nobody says how many
# A time slice of the system is some milliseconds, and who gets which core changes slowly: windows have to be long.
WINDOW_SECONDS, WINDOWS = 0.4, 5
QUICK_WINDOW_SECONDS, QUICK_WINDOWS = 0.1, 3
STEP_MODEL, STEP_BATCH, STEP_CLASSES, STEP_ROUTING = "matrix-capsnet-small", 64, 5, {"num_iterations": 3}
STEP = "step-matrix-small"
STEP_DESCRIPTION = f"a training step of {STEP_MODEL}, B{STEP_BATCH}, 3 iterations"
ALONE, BESIDE = "alone", "beside"

# It ends with whoever started it, however that ends.
NEIGHBOUR = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for number in range(1_000_000):
        number * number
"""


def measure_neighbour(case: Case | None, settings: Settings) -> dict[str, Any]:
    """Seconds of forward, and of forward and backward, of a case; without one, of a training step."""
    threads = settings.threads or THREADS
    if case is None:
        calls: dict[str, Callable[[], object]] = {"step": _training_step()}
    else:
        workload = Workload(case)
        calls = {name: partial(getattr(workload, name), FASTEST) for name in ("forward", "forward_backward")}
    return {name: _measure(call, threads, quick=settings.quick) for name, call in calls.items()}


@contextmanager
def neighbour() -> Iterator[None]:
    """One process that computes without end, as long as the block lasts."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(os.getpid())])
    try:
        time.sleep(0.2)  # until it computes
        yield
    finally:
        process.kill()
        process.wait()


def _measure(call: Callable[[], object], threads: int, *, quick: bool) -> dict[str, Any]:
    """Medians of windows that take turns between one thread and several, and what several cost beside one."""
    found: dict[str, Any] = {"threads": threads}
    found[ALONE] = _take_turns(call, threads, quick=quick)
    with neighbour():
        found[BESIDE] = _take_turns(call, threads, quick=quick)
    for name in (ALONE, BESIDE):
        one, several = found[name]
        found[name] = {"one": one, "several": several, "ratio": several / one}
    return found


def _take_turns(call: Callable[[], object], threads: int, *, quick: bool) -> tuple[float, float]:
    seconds = QUICK_WINDOW_SECONDS if quick else WINDOW_SECONDS
    before = torch.get_num_threads()
    windows: dict[int, list[float]] = {1: [], threads: []}
    try:
        for _ in range(QUICK_WINDOWS if quick else WINDOWS):
            for number, taken in windows.items():
                torch.set_num_threads(number)
                call()  # starts threads, warms caches
                start, num_calls = time.perf_counter(), 0
                while num_calls == 0 or time.perf_counter() - start < seconds:
                    call()
                    num_calls += 1
                taken.append((time.perf_counter() - start) / num_calls)
    finally:
        torch.set_num_threads(before)
    return statistics.median(windows[1]), statistics.median(windows[threads])


def _training_step() -> Callable[[], object]:
    """A step of the small matrix network: forward, loss, backward, optimiser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = (2, 32, 32)
        model = create_model(STEP_MODEL, image_shape=shape, num_classes=STEP_CLASSES, routing_options=STEP_ROUTING)
        images, targets = torch.randn(STEP_BATCH, *shape), torch.randint(STEP_CLASSES, (STEP_BATCH,))
    optimizer = torch.optim.AdamW(model.train().parameters())

    def step() -> None:
        spread_loss(model(images).scores, targets, 0.2).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
