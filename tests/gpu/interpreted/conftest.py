"""Kernels in Triton's interpreter, in a process of their own: `TRITON_INTERPRET=1 pytest tests/gpu/interpreted`."""

import os
from importlib.util import find_spec

import pytest
import torch

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETS and find_spec("triton") else ["test_*.py"]

if not collect_ignore_glob:
    import triton.runtime.interpreter as interpreter

    from torchcaps.gpu import tiles

    # Its cost is that of an operation, whatever the size of a tile, and half of that is bookkeeping: it patches the
    # language anew for every function that a kernel calls, and checks every sum of integers for overflow.
    patched = set()
    patch_language, run_grid = interpreter._patch_lang, interpreter.GridExecutor.__call__

    def patch_once(function):
        if function.__module__ in patched:
            return None
        patched.add(function.__module__)
        return patch_language(function)

    def run(self, *arguments, **options):
        patched.clear()
        return run_grid(self, *arguments, **options)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, run
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)


@pytest.fixture(autouse=True)
def large_tiles(request, monkeypatch):
    """One program does all, unless a test is about tiles."""
    if "tiles" not in request.fixturenames:
        monkeypatch.setattr(tiles, "ENTRIES", 2**16)
        monkeypatch.setattr(tiles, "WEIGHT_ENTRIES", 2**18)
        monkeypatch.setattr(tiles, "PROGRAMS_WANTED", 1)


@pytest.fixture(autouse=True)
def empty_is_nan():
    """Memory that nobody has written holds NaN, so that an entry no kernel writes is seen."""
    from torch.utils import deterministic

    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True)  # the public function loads the whole compiler
    deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch._C._set_deterministic_algorithms(before)
