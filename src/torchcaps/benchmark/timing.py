"""Quiet timing: windows in which other processes used the CPU are thrown away, the median of the rest counts."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchcaps.benchmark.settings import Settings

STAT = Path("/proc/stat")
LEAST_WINDOWS = 3
# A window is quiet if others took less than this share of one CPU, or no more than one tick of a short window.
QUIET_SHARE = 0.06
TICK = 1 / os.sysconf("SC_CLK_TCK")
SHORT_SECONDS = 20 * TICK
LONG_CALL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One figure.

    Attributes:
        seconds: median over the windows that count.
        best: the fastest window.
        quiet_windows: how many were undisturbed; if fewer than three, the least disturbed third counted.
        windows: how many were taken.
    """

    seconds: float
    best: float
    quiet_windows: int
    windows: int

    @property
    def is_quiet(self) -> bool:
        return self.quiet_windows >= LEAST_WINDOWS


@dataclass
class _Figure:
    """The windows of one call so far: (share of a CPU that others took, seconds per call)."""

    call: Callable[[], object]
    num_calls: int
    is_long: bool
    windows: list[tuple[float, float]] = field(default_factory=list)
    num_quiet: int = 0
    spent: float = 0.0

    def wants_more(self, settings: Settings) -> bool:
        if len(self.windows) < LEAST_WINDOWS:
            return True
        return self.num_quiet < settings.windows and self.spent < settings.budget_seconds

    def take_window(self) -> None:
        if not self.is_long:
            self.call()  # the call before was another's: warm the caches again
        others, seconds = _others_seconds(), []
        for _ in range(self.num_calls):
            start = time.perf_counter()
            self.call()
            seconds.append(time.perf_counter() - start)
        disturbed, elapsed = max(0.0, _others_seconds() - others), sum(seconds)
        is_quiet = disturbed < QUIET_SHARE * elapsed or (elapsed < SHORT_SECONDS and disturbed <= 1.01 * TICK)
        self.num_quiet += is_quiet
        self.windows.append((0.0 if is_quiet else disturbed / elapsed, statistics.median(seconds)))
        self.spent += elapsed

    def timing(self) -> Timing:
        ordered = sorted(self.windows)
        counted = self.num_quiet if self.num_quiet >= LEAST_WINDOWS else max(LEAST_WINDOWS, len(ordered) // 3)
        return Timing(
            seconds=statistics.median(seconds for _, seconds in ordered[:counted]),
            best=min(seconds for _, seconds in ordered),
            quiet_windows=self.num_quiet,
            windows=len(ordered),
        )


def time_calls(calls: Mapping[str, Callable[[], object]], settings: Settings) -> dict[str, Timing]:
    """Time the calls in turns, window by window, so that slow changes of the machine meet all of them alike."""
    figures = {}
    for name, call in calls.items():
        call()  # compiles, loads, faults in
        start = time.perf_counter()
        call()
        elapsed = time.perf_counter() - start
        num_calls = max(1, round(settings.window_seconds / elapsed))
        figures[name] = _Figure(call, num_calls, is_long=elapsed > LONG_CALL_SECONDS)
    while unfinished := [figure for figure in figures.values() if figure.wants_more(settings)]:
        for figure in unfinished:
            figure.take_window()
    return {name: figure.timing() for name, figure in figures.items()}


def _others_seconds() -> float:
    """CPU time that the machine spent on others (stolen time included), 0 where the system does not tell."""
    if not STAT.exists():
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, STAT.read_text().split(maxsplit=9)[1:9])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) * TICK - (own.user + own.system)
