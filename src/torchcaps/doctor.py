"""A look at the installation: versions, backends, threads, memory settings, optional parts."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from torchcaps import __version__
from torchcaps.capsules import Capsules
from torchcaps.data.home import VARIABLE, home
from torchcaps.gpu.verified import identity
from torchcaps.native import library
from torchcaps.routing import Plan, backend_names, find_routing, plan, routing_names, why_not
from torchcaps.routing.dynamic.api import dynamic_routing
from torchcaps.versions import accelerator_here
from torchcaps.votes import DenseVotes

TESTED_TORCH = "2.13.0"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HEAP_REUSE = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000"
EXTRAS = {
    "explorer": (("fastapi", "uvicorn"), "the explorer in the browser"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "torchcaps export --format onnx"),
    "chinese": (("rjieba",), "words of Chinese texts"),
    "encoders": (("transformers",), "pretrained encoders of texts and images, from a folder or the hub"),
    "retrieval": (("faiss-cpu", "pyarrow"), "an index of items, and interactions in .parquet files"),
    "tensorboard": (("tensorboard",), "torchcaps train --trackers tensorboard"),
}


class Finding(NamedTuple):
    """One line of the examination; advice is empty where nothing needs to be done."""

    part: str
    state: str
    advice: str = ""


def examine() -> list[Finding]:
    """Everything that decides what runs here and how fast."""
    speed = [_kernels(), _backends(), *_gpus(), _threads(), _allocator(), _huge_pages(), _compiler()]
    return [*_versions(), *speed, _data(), *_optional()]


def _versions() -> list[Finding]:
    installed = torch.__version__.split("+")[0]
    advice = "" if installed == TESTED_TORCH else f"tested with {TESTED_TORCH}; run the tests if in doubt"
    accelerator = accelerator_here()
    device = "CPU" if accelerator is None else f"CPU and {accelerator.type}"
    return [
        Finding("torchcaps", __version__),
        Finding("python", platform.python_version()),
        Finding("torch", f"{torch.__version__}, {device}", advice),
    ]


def _kernels() -> Finding:
    reason, others = library.why_not(), ", ".join(backend_names()[1:])
    if reason is None:
        return Finding("fused kernels", f"{Path(library.load()._name).name}, for {', '.join(_routings_with_kernels())}")
    return Finding(
        "fused kernels",
        f"missing: {reason}",
        f"everything works on the other backends ({others}); training capsule layers takes many times longer",
    )


def _routings_with_kernels() -> list[str]:
    """Names of the routings of this package whose layers the kernels of the CPU take."""
    votes = DenseVotes(Capsules(torch.zeros(1, 8, 8), torch.ones(1, 8)), torch.zeros(8, 2, 8, 16))
    found = []
    for entry in map(find_routing, routing_names()):
        if not entry.module.__module__.startswith("torchcaps."):
            continue
        routing = entry.module()
        routing.bind(votes.num_parents, votes.vote_size, num_owners=8, child_size=8)
        if why_not("fused", routing, votes) is None:
            found.append(entry.name)
    return found


def _backends() -> Finding:
    """What a capsule layer on the CPU would run on, and why not on the others."""
    planned = _plan("cpu")
    refusals = [f"{name} does not: {reason}" for name, reason in planned.reasons.items() if reason is not None]
    return Finding("backends", "; ".join([f"auto takes {planned.chosen} on the CPU", *refusals]))


def _gpus() -> list[Finding]:
    """What a capsule layer on each GPU would run on, and why not on the kernels for it."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        planned = _plan(f"cuda:{index}")
        reason = planned.reasons["triton"] or planned.passed_over.get("triton")
        state = f"{identity(index)}: auto takes {planned.chosen}"
        found.append(Finding(f"GPU {index}", state, f"triton: {reason}" if reason else ""))
    return found


def _plan(device: str) -> Plan:
    with torch.device(device):
        return plan(dynamic_routing, DenseVotes(torch.zeros(1, 8, 8), torch.zeros(8, 2, 8, 16)))


def _threads() -> Finding:
    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = ""
    if threads < cores:
        advice = f"{cores} cores are free to use: torch.set_num_threads({cores}) or OMP_NUM_THREADS={cores}"
    elif threads > cores:
        advice = f"more threads than cores slow each other down: OMP_NUM_THREADS={cores}"
    return Finding("threads", f"{threads} on {cores} cores", advice)


def _allocator() -> Finding:
    """With the figures of results/benchmarks/layers.json."""
    if os.environ.get("MALLOC_MMAP_MAX_") == "0":
        return Finding("allocator", "reuses its heap")
    return Finding(
        "allocator",
        "returns large blocks to the system, and every large tensor faults its pages in anew",
        f"{HEAP_REUSE} before a command on the reference or chunked backend: forward and backward of CapsNet's last "
        "layer took 189 ms instead of 431 ms on the reference (two threads of an AMD EPYC); the fused backend (17 ms) "
        "needs no help. Memory is then not given back",
    )


def _huge_pages() -> Finding:
    try:
        setting = HUGE_PAGES.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return Finding("huge pages", "unknown")
    if setting != "madvise" or os.environ.get("THP_MEM_ALLOC_ENABLE") == "1":
        return Finding("huge pages", setting)
    return Finding(
        "huge pages",
        "madvise: given to those who ask",
        "THP_MEM_ALLOC_ENABLE=1 lets torch ask: about 2.5 times as fast on the reference with the default allocator",
    )


def _compiler() -> Finding:
    compiler = os.environ.get("CXX") or "c++"
    found = shutil.which(compiler.split()[0])
    if found is not None:
        return Finding("C++ compiler", found)
    return Finding("C++ compiler", "none", "needed by torch.compile and `torchcaps export --format aoti`: install g++")


def _data() -> Finding:
    folder = home()
    if folder.is_dir():
        return Finding("data folder", str(folder))
    if not os.environ.get(VARIABLE):
        return Finding(
            "data folder",
            f"{VARIABLE} is not set",
            "only for sets by name, such as mnist: `torchcaps data fetch mnist` makes the folder data/",
        )
    return Finding("data folder", f"{folder} is not a folder", f"set {VARIABLE} to one")


def _optional() -> list[Finding]:
    findings = []
    for extra, (packages, purpose) in EXTRAS.items():
        versions = {package: _version(package) for package in packages}
        missing = [package for package, number in versions.items() if number is None]
        present = ", ".join(f"{package} {number}" for package, number in versions.items() if number is not None)
        if missing:
            advice = f"pip install 'torchcaps[{extra}]' for {purpose}"
            findings.append(Finding(extra, f"not installed: {', '.join(missing)}", advice))
        else:
            findings.append(Finding(extra, present))
    return findings


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
