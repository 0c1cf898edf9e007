"""Peak memory of one call: how far the resident set rises above where it stood."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
C_LIBRARY = ctypes.CDLL(None)


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Bytes by which `call()` raises the resident set at most, its result included; None where that is not told.

    Right only under the default allocator, which gives large blocks back: freed memory is returned to the system
    before the call, so nothing is reused that another call left behind. What `call` sets up once (libraries, threads,
    compilation) belongs into a smaller call before.
    """
    if not CLEAR.exists() or not hasattr(C_LIBRARY, "malloc_trim"):
        return None
    gc.collect()
    C_LIBRARY.malloc_trim(0)
    CLEAR.write_text("5")  # sets the high-water mark to what is resident now
    before = _status_bytes("VmRSS")
    call()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
