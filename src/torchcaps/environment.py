"""Where figures come from: machine, versions, threads, date and command."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import torch

import torchcaps
from torchcaps.native import library


def environment(threads: int | None = None) -> dict[str, Any]:
    """What a reader needs to take the same figures again."""
    reason = library.why_not()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "num_cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "transparent_huge_pages": _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "load_average": os.getloadavg()[0],
        "threads": threads or torch.get_num_threads(),
        "kernels": Path(library.load()._name).name if reason is None else reason,
        "git": git_hash(),
        "versions": {
            "torchcaps": torchcaps.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def command() -> str:
    """What was typed; `python -m torchcaps` is told as `torchcaps`."""
    program = Path(sys.argv[0])
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def git_hash() -> str | None:
    """The commit of the package's source tree, with a mark if it has changes; None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _cpu_model() -> str:
    lines = (_read(Path("/proc/cpuinfo")) or "").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
