"""Kernels in Triton's interpreter, in a process of their own: `TRITON_INTERPRET=1 pytest tests/gpu/interpreted`."""

import os
from importlib.util import find_spec

import pytest

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETS and find_spec("triton") else ["test_*.py"]

if not collect_ignore_glob:
    from support.interpreter import ONE_PROGRAM, nan_in_new_memory, quicken, tiles_of

    quicken()


@pytest.fixture(autouse=True)
def large_tiles(request):
    """One program does all, unless a test is about tiles."""
    with tiles_of({} if "tiles" in request.fixturenames else ONE_PROGRAM):
        yield


@pytest.fixture(autouse=True)
def empty_is_nan():
    """What no kernel writes is NaN."""
    with nan_in_new_memory():
        yield
