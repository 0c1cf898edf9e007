"""Finding and loading the native library.

The library is built beside this file, once per instruction set. It links the OpenMP runtime that torch has
already loaded and shares its threads, as long as none of them comes late; beside busy processes it has some of its own.

Environment:
    TORCHCAPS_ISA: ``avx512``, ``avx2`` or ``portable`` forces one build; unset, the processor decides. Calls that fill
        no more than half a register go to the build that is half as wide, if there is one.
    TORCHCAPS_NATIVE: a folder with other builds of the library, such as sanitised ones.
    TORCHCAPS_HELPERS: ``openmp`` or ``own`` takes helpers of one kind alone; unset, it depends on how busy cores are.
    TORCHCAPS_POISON: ``1`` fills scratch memory with NaN (for tests).
"""

import ctypes
import functools
import os
from pathlib import Path

import torch

from torchcaps.native.struct import EmOptionsStruct, SoftmaxOptionsStruct, VotesStruct

__all__ = ["NativeLibraryError", "call", "load", "num_threads", "release_scratch", "why_not"]

ABI_VERSION = 7
STRUCTS = {"votes": VotesStruct, "em_options": EmOptionsStruct, "softmax_options": SoftmaxOptionsStruct}
INSTRUCTION_SETS = ("avx512", "avx2", "portable")  # the best first
HALF_AS_WIDE = {"avx512": "avx2"}  # the build that takes calls which would leave half of every register empty
FOLDER = Path(os.environ.get("TORCHCAPS_NATIVE") or Path(__file__).parent)

_FAILURES = {
    1: "out of memory for scratch space: use a smaller batch, or another backend",
    2: "the kernel was given arguments it does not take (this is a bug in torchcaps: please report it)",
}

_forked = False


class NativeLibraryError(RuntimeError):
    """The native library is missing, does not fit this processor, or comes from another version."""


def library_path(instruction_set: str) -> Path:
    """Where the build for one instruction set lies."""
    return FOLDER / f"libtorchcaps_{instruction_set}.so"


def load() -> ctypes.CDLL:
    """The native library for this processor, loaded once per process.

    Raises:
        NativeLibraryError: with the reason, when there is none to load.
    """
    return open_library(instruction_set())


def load_for(filled: int) -> ctypes.CDLL:
    """The build for a call with lanes for `filled` bytes: the one half as wide where that has room for all of them.

    What works on padding costs as much as what works on numbers, and needs twice the cache. So on a processor with
    AVX-512 class layers of a few classes, and softmax routings of a few examples, go to the build for AVX2.
    """
    widest = load()
    return _half_as_wide(instruction_set()) or widest if 2 * filled <= widest.torchcaps_register_bytes() else widest


def instruction_set() -> str:
    """The build that is asked for, or else the best that the processor runs."""
    wanted = os.environ.get("TORCHCAPS_ISA", "")
    if wanted and wanted not in INSTRUCTION_SETS:
        raise NativeLibraryError(f"TORCHCAPS_ISA must be one of {INSTRUCTION_SETS}, got {wanted!r}: unset it")
    if wanted and not cpu_runs(wanted):
        raise NativeLibraryError(f"TORCHCAPS_ISA is {wanted!r}, which this processor does not run: unset it")
    return wanted or _best_instruction_set()


@functools.cache
def cpu_runs(instruction_set: str) -> bool:
    """Whether this processor runs a build; only the portable one can be asked, so without it one must know."""
    if instruction_set == "portable" or not library_path("portable").exists():
        return True
    return bool(getattr(open_library("portable"), f"torchcaps_cpu_runs_{instruction_set}")())


def register_bytes(filled: int) -> int:
    """What a register of the build for a call holds: kernels that work child by child pad parents to whole ones."""
    return load_for(filled).torchcaps_register_bytes()


@functools.cache
def open_library(instruction_set: str) -> ctypes.CDLL:
    """Loads one build and checks that it was compiled from the sources of this version."""
    path = library_path(instruction_set)
    if not path.exists():
        raise NativeLibraryError(
            f"{path.name} is not built: install a C++17 compiler with OpenMP and reinstall torchcaps "
            "(in a source tree: python setup.py build_ext --inplace)"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeLibraryError(f"{path.name} does not load: {error}") from error
    expected = (ABI_VERSION, *(ctypes.sizeof(struct) for struct in STRUCTS.values()))
    try:
        built = (library.torchcaps_abi_version(), *(getattr(library, f"torchcaps_{name}_bytes")() for name in STRUCTS))
    except AttributeError:  # older than the entry point that is asked for
        built = (library.torchcaps_abi_version(),)
    if built != expected:
        raise NativeLibraryError(
            f"{path.name} was built from other sources (interface {built}, expected {expected}): reinstall torchcaps"
        )
    return library


@functools.cache
def _half_as_wide(name: str) -> ctypes.CDLL | None:
    narrower = HALF_AS_WIDE.get(name)
    return open_library(narrower) if narrower and library_path(narrower).exists() else None


@functools.cache
def _best_instruction_set() -> str:
    if not library_path("portable").exists():
        return "portable"  # whose absence the error tells
    return next(name for name in INSTRUCTION_SETS if library_path(name).exists() and cpu_runs(name))


def why_not() -> str | None:
    """Why the native library cannot be used, or ``None`` when it can."""
    try:
        load()
    except NativeLibraryError as error:
        return str(error)
    return None


# What torch.compiler.assume_constant_result sets; calling it would load the whole compiler at import.
why_not._dynamo_marked_constant = True  # pyrefly: ignore[missing-attribute]


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Calls one entry point of a build and raises what its status means.

    Args:
        library: The build.
        name: The entry point, with its ``_f32`` or ``_f64`` ending.
        *arguments: ctypes values, pointers and structures; plain integers are passed as C ``int``.
    """
    status = getattr(library, name)(*arguments)
    if status == 1:
        raise MemoryError(f"{name}: {_FAILURES[1]}")
    if status != 0:
        raise RuntimeError(f"{name}: {_FAILURES.get(status, f'unknown status {status}')}")


def num_threads() -> int:
    """The threads a kernel may use: those of torch, or one in a forked child.

    The pool of OpenMP threads does not survive ``fork``; waiting for it would hang for ever.
    """
    return 1 if _forked else torch.get_num_threads()


def release_scratch() -> None:
    """Returns the scratch memory that kernels keep between calls."""
    for library in {load(), load_for(0)}:
        call(library, "torchcaps_release_scratch")


def _remember_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_fork)
