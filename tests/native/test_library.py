"""Which build of the kernels a process takes."""

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.native.library import INSTRUCTION_SETS, NativeLibraryError
from torchcaps.routing import dynamic_routing, em_routing
from torchcaps.votes import DenseVotes


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


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("routing", [em_routing, dynamic_routing])
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_calls_that_leave_half_a_register_empty_go_to_the_narrower_build(name, routing, dtype, monkeypatch):
    """Lanes are parents for EM and examples for dynamic routing."""
    if not library.library_path(name).exists() or not library.cpu_runs(name):
        pytest.skip(f"no {name} build here")
    monkeypatch.setenv("TORCHCAPS_ISA", name)
    taken, getter = [], library.load_for
    monkeypatch.setattr(library, "load_for", lambda filled: taken.append(getter(filled)) or taken[-1])
    half = 32 // dtype.itemsize
    narrower = library.HALF_AS_WIDE.get(name, name)
    for lanes, expected in ((1, narrower), (half, narrower), (half + 1, name), (5 * half, name)):
        batch_size, num_parents = (2, lanes) if routing is em_routing else (lanes, 2)
        poses = torch.randn(batch_size, 3, 4, dtype=dtype, requires_grad=True)
        votes = DenseVotes(
            Capsules(poses, torch.ones(batch_size, 3, dtype=dtype)), torch.randn(3, num_parents, 4, 5, dtype=dtype)
        )
        options = {"beta_a": 0.0, "beta_u": 0.0} if routing is em_routing else {}
        taken.clear()
        routing(votes, **options, backend="fused").capsules.poses.sum().backward()
        assert len(taken) >= 2
        assert set(taken) == {library.open_library(expected)}
