"""Where the kernels have been found right: remembered for each GPU, driver and version.

Environment:
    TORCHCAPS_CACHE: the folder of what is remembered; unset, ~/.cache/torchcaps.
"""

import json
import os
from functools import cache
from pathlib import Path

import torch

from torchcaps import __version__
from torchcaps.gpu.availability import triton_version
from torchcaps.routing.ops.bodies import interprets
from torchcaps.storage import write_json

VARIABLE = "TORCHCAPS_CACHE"


def record_path() -> Path:
    """The file of all findings."""
    folder = os.environ.get(VARIABLE)
    return (Path(folder) if folder else Path.home() / ".cache" / "torchcaps").expanduser() / "verified.json"


def identity(index: int) -> str:
    """What a finding holds for: a kind of GPU, its driver, and the versions of what compiles and starts kernels."""
    name = torch.cuda.get_device_name(index)
    capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
    platform = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    driver = torch._C._cuda_getDriverVersion() if hasattr(torch._C, "_cuda_getDriverVersion") else "unknown"
    parts = (f"torchcaps {__version__}", f"torch {torch.__version__}", f"triton {triton_version()}")
    return ", ".join((name, capability, platform, f"driver {driver}", *parts))


def remember(index: int, *, right: bool) -> None:
    """Write down what was found on a GPU."""
    write_json(record_path(), _record() | {identity(index): right})
    read_finding.cache_clear()


def why_not_verified(device: torch.device) -> str | None:
    """Why "auto" does not take the kernels on a device; None where they were found right."""
    if interprets():
        return "the interpreter of Triton is for tests: name the backend"
    return why_not_index(device.index or 0)


def why_not_index(index: int) -> str | None:
    """The same for a GPU by its number."""
    return read_finding(index)


why_not_index._dynamo_marked_constant = True  # pyrefly: ignore[missing-attribute]


@cache
def read_finding(index: int) -> str | None:
    """The same, read once in a process."""
    found = _record().get(identity(index))
    if found is None:
        return (
            "its kernels have not been tried on this GPU with these versions: `torchcaps doctor --verify` does so, "
            "and from then on 'auto' takes them where they are right"
        )
    return None if found else "`torchcaps doctor --verify` found its kernels wrong on this GPU: please report it"


def _record() -> dict[str, bool]:
    """All findings; a file that cannot be read is as good as none."""
    try:
        found = json.loads(record_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
