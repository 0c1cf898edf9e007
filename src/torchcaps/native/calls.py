"""What the kernels of all families share: whom they refuse, and how they are called."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from torchcaps.native import library
from torchcaps.native.struct import pointer, votes_struct
from torchcaps.routing.ops.votes import KernelVotes
from torchcaps.routing.problem import Problem
from torchcaps.votes import LinearVotes

DTYPES = {torch.float32: "f32", torch.float64: "f64"}
LARGEST_REGISTER = 64  # bytes, of any build: kernels that work child by child pad parents to whole registers
LARGEST_COUNT = 2**31 - 1


def why_not_native(problem: Problem) -> str | None:
    """Why no kernel of the CPU takes a problem; None if one may."""
    if (dtype := problem.votes.example.dtype) not in DTYPES:
        return f"the kernels take float32 and float64, the votes are {dtype}"
    return library.why_not()


def why_not_count(problem: Problem, most: int) -> str | None:
    """Why a kernel that works child by child does not take a problem: its inner loops count with 32 bits.

    Args:
        problem: whose votes are described.
        most: entries of all parents of one position that it can count.
    """
    votes = problem.votes
    assert isinstance(votes, LinearVotes)
    _, num_parents, inner, outer = votes.weight.shape
    padded_parents = num_parents + LARGEST_REGISTER // votes.poses.element_size()
    if max(votes.poses.shape[-1], votes.rows * inner, inner * outer) > LARGEST_COUNT:
        return f"its kernel counts the entries of a pose and of a transformation with 32 bits, got {inner} x {outer}"
    if padded_parents * votes.vote_size > most:
        return (
            "its kernel counts what one parent position needs with 32 bits, which "
            f"{num_parents} parents of {votes.vote_size} entries exceed"
        )
    return None


def call(
    entry: str, lanes: int, votes: KernelVotes, options: ctypes.Structure, *arguments: Tensor | ctypes.c_int64 | None
) -> None:
    """Calls torchcaps_<entry> for the dtype of the votes; votes and tensors must be contiguous, None is null.

    Args:
        entry: which computation.
        lanes: parents or samples that lie side by side in registers.
        votes, options, *arguments: as the entry point takes them.
    """
    addresses = [
        argument if isinstance(argument, ctypes.c_int64) else ctypes.c_void_p(pointer(argument))
        for argument in arguments
    ]
    library.call(
        library.load_for(lanes * votes.poses.element_size()),
        f"torchcaps_{entry}_{DTYPES[votes.poses.dtype]}",
        ctypes.byref(votes_struct(votes)),
        ctypes.byref(options),
        *addresses,
        library.num_threads(),
    )


def doubles(values: Sequence[float]) -> ctypes.Array:
    """An array of C; it must outlive the call that reads its address."""
    return (ctypes.c_double * len(values))(*values)
