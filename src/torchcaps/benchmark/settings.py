"""How long and how carefully to measure."""

from dataclasses import dataclass, replace

from torchcaps.checks import check_count

# Pages of freed memory go back to the system by default, and every large tensor faults them in anew; with heap reuse
# they stay. Code that materialises its votes differs several-fold between the two, so both are shown.
ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    "heap reuse": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a benchmark is taken.

    Attributes:
        quick: smaller shapes, no torch.compile.
        windows: quiet windows wanted for each figure.
        window_seconds: length of a window; one call if a call takes longer.
        budget_seconds: after this long a figure is made of the least disturbed windows.
        threads: of torch and of the kernels; None for torch's choice.
    """

    quick: bool
    windows: int
    window_seconds: float
    budget_seconds: float
    threads: int | None = None

    def with_threads(self, threads: int | None) -> "Settings":
        """The same with a number of threads."""
        return replace(self, threads=None if threads is None else check_count("threads", threads))


FULL = Settings(quick=False, windows=9, window_seconds=0.08, budget_seconds=20.0)
QUICK = Settings(quick=True, windows=3, window_seconds=0.02, budget_seconds=0.2)
