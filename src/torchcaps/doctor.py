"""A look at the installation: versions, backends, threads, memory settings, optional parts."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from torchcaps import __version__
from torchcaps.native import library

TESTED_TORCH = "2.13.0"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OPTIONAL = {"scikit-learn": "the tests", "tensorboard": "the tensorboard tracker"}


class Finding(NamedTuple):
    """One line of the examination."""

    part: str
    state: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything that decides what runs here and how fast."""
    return [*_versions(), _kernels(), _threads(), _allocator(), _huge_pages(), *_optional()]


def _versions() -> list[Finding]:
    installed = torch.__version__.split("+")[0]
    advice = "" if installed == TESTED_TORCH else f"tested with {TESTED_TORCH}; run the tests if in doubt"
    device = "CUDA" if torch.cuda.is_available() else "CPU"
    return [Finding("torchcaps", __version__), Finding("torch", f"{torch.__version__}, {device}", advice)]


def _kernels() -> Finding:
    reason = library.why_not()
    if reason is None:
        return Finding("fused kernels", Path(library.load()._name).name)
    return Finding(
        "fused kernels",
        f"missing: {reason}",
        "everything works on the reference and chunked backends; training capsule layers takes many times longer",
    )


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    advice = "" if threads >= cores else f"{cores} cores are there: torch.set_num_threads or OMP_NUM_THREADS"
    return Finding("threads", f"{threads} of {cores} cores", advice)


def _allocator() -> Finding:
    reuses = os.environ.get("MALLOC_MMAP_MAX_") == "0"
    advice = (
        ""
        if reuses
        else (
            "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 makes the reference backend "
            "two to five times as fast: large tensors no longer cost a page fault per page"
        )
    )
    return Finding("allocator", "reuses its heap" if reuses else "returns large blocks to the system", advice)


def _huge_pages() -> Finding:
    try:
        setting = HUGE_PAGES.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return Finding("huge pages", "unknown")
    advice = "THP_MEM_ALLOC_ENABLE=1 lets torch ask for them" if setting == "madvise" else ""
    return Finding("huge pages", setting, advice)


def _optional() -> list[Finding]:
    findings = []
    for distribution, purpose in OPTIONAL.items():
        try:
            findings.append(Finding(distribution, version(distribution)))
        except PackageNotFoundError:
            findings.append(Finding(distribution, "not installed", f"pip install {distribution} for {purpose}"))
    return findings
