"""Triton's interpreter made quick enough for tests, and tiles for it. To import this is to need Triton."""

from contextlib import contextmanager

import torch
from torch.utils import deterministic
from triton.runtime import interpreter

from torchcaps.gpu import tiles

FEW = 30  # slots of all windows: the interpreter walks over them one by one
ONE_PROGRAM = {"ENTRIES": 2**16, "WEIGHT_ENTRIES": 2**18, "PROGRAMS_WANTED": 1}
MANY_PROGRAMS = {"ENTRIES": 256, "WEIGHT_ENTRIES": 1024, "PROGRAMS_WANTED": 4}


def quicken() -> None:
    """Leave out bookkeeping: its cost is that of an operation, whatever the size of a tile, and half of that is waste.

    It patches the language anew for every function that a kernel calls, and checks every sum of integers for overflow.
    """
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


@contextmanager
def tiles_of(sizes: dict[str, int]):
    """Inside the block tiles have these sizes."""
    before = {name: getattr(tiles, name) for name in sizes}
    vars(tiles).update(sizes)
    yield
    vars(tiles).update(before)


@contextmanager
def nan_in_new_memory():
    """Memory that nobody has written holds NaN, so that an entry no kernel writes is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True)  # the public function loads the whole compiler
    deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch._C._set_deterministic_algorithms(before)
