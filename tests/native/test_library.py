"""Which build of the kernels a process takes."""

import pytest

from torchcaps.native import library
from torchcaps.native.library import INSTRUCTION_SETS, NativeLibraryError


@pytest.fixture
def processor(monkeypatch):
    """Pretends that the processor runs some instruction sets alone."""

    def pretend(*names: str) -> None:
        monkeypatch.setattr(library, "cpu_runs", lambda name: name in names)
        library._best_instruction_set.cache_clear()

    yield pretend
    library._best_instruction_set.cache_clear()


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
def test_the_best_build_that_the_processor_runs(processor, monkeypatch):
    monkeypatch.delenv("TORCHCAPS_ISA", raising=False)
    built = [name for name in INSTRUCTION_SETS if library.library_path(name).exists()]
    for first in range(len(built)):
        processor(*built[first:])
        assert library.load() is library.open_library(built[first])


def test_a_build_that_the_processor_does_not_run_is_never_loaded(processor, monkeypatch):
    processor("portable")
    for name in INSTRUCTION_SETS[:-1]:
        monkeypatch.setenv("TORCHCAPS_ISA", name)
        with pytest.raises(NativeLibraryError, match=f"'{name}', which this processor does not run: unset it"):
            library.load()


def test_unknown_instruction_sets_are_named(monkeypatch):
    monkeypatch.setenv("TORCHCAPS_ISA", "sse9")
    with pytest.raises(NativeLibraryError, match="must be one of .*avx512.*got 'sse9'"):
        library.load()


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
def test_registers_are_as_wide_as_the_build_says():
    widths = {"avx512": 64, "avx2": 32, "portable": 32}
    for name in INSTRUCTION_SETS:
        if library.library_path(name).exists() and library.cpu_runs(name):
            assert library.open_library(name).torchcaps_register_bytes() == widths[name]
