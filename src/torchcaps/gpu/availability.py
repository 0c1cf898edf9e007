"""Where the kernels run: on GPUs that Triton knows, or for tests in its interpreter on the CPU."""

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor

from torchcaps.gpu.tiles import LARGEST_VOTE, power_of_two
from torchcaps.routing.ops.bodies import interprets
from torchcaps.routing.problem import Problem
from torchcaps.votes import LinearVotes

TYPES = (torch.float32, torch.float64, torch.bfloat16)
LEAST_CAPABILITY = (8, 0)
LEAST_TRITON = (3, 4)  # before it kernels cannot walk through named tuples
LARGEST_COUNT = 2**31 - 1


def device_type() -> str:
    """Of the tensors that the kernels take."""
    return "cpu" if interprets() else "cuda"


def why_not_triton() -> str | None:
    """Why there is no Triton; None if there is."""
    return look_for_triton()


def why_not_device(index: int) -> str | None:
    """Why the kernels do not run on a GPU; None if they do."""
    return look_at_device(index)


# What torch.compiler.assume_constant_result sets; calling it would load the whole compiler at import. A compiler looks
# through a cache, so that what is cached is called by what is constant.
for function in (interprets, why_not_triton, why_not_device):
    function._dynamo_marked_constant = True  # pyrefly: ignore[missing-attribute]


@cache
def look_for_triton() -> str | None:
    """The same, found out once."""
    if find_spec("triton") is None:
        return "Triton is not installed: torch's builds for GPUs bring it, or `pip install --no-deps triton==3.7.1`"
    found = triton_version()
    if (numbers := re.match(r"(\d+)\.(\d+)", found)) and tuple(map(int, numbers.groups())) < LEAST_TRITON:
        return f"its kernels need Triton 3.4, which comes with torch 2.8; this is Triton {found}"
    return None


def triton_version() -> str:
    """Of the package that is installed, which has several names."""
    for package in ("triton", "pytorch-triton-rocm", "pytorch-triton"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"


@cache
def look_at_device(index: int) -> str | None:
    """The same, found out once."""
    if torch.version.hip is not None:
        return None
    capability = torch.cuda.get_device_capability(index)
    if capability < LEAST_CAPABILITY:
        return (
            f"its kernels need compute capability {'.'.join(map(str, LEAST_CAPABILITY))}, "
            f"{torch.cuda.get_device_name(index)} has {'.'.join(map(str, capability))}"
        )
    return None


def why_not_gpu(problem: Problem) -> str | None:
    """Why no kernel takes a problem, from metadata only; None if one does."""
    votes = problem.votes
    assert isinstance(votes, LinearVotes)
    device = votes.poses.device
    if (reason := why_not_triton()) is not None:
        return reason
    if not interprets() and (reason := why_not_device(device.index or 0)) is not None:
        return reason
    if votes.poses.dtype not in TYPES:
        return f"its kernels take float32, float64 and bfloat16, the votes are {votes.poses.dtype}"
    outer = votes.weight.shape[-1]
    if (entries := power_of_two(votes.rows) * power_of_two(outer)) > LARGEST_VOTE:
        return (
            f"its kernels hold a vote in registers, at most {LARGEST_VOTE} entries of it; "
            f"{votes.rows} x {outer} are {entries} when padded to powers of two"
        )
    if (count := _largest_count(votes)) > LARGEST_COUNT:
        return f"its kernels count windows, slots and parents with 32 bits, this layer has {count:,} of them"
    return None


def _largest_count(votes: LinearVotes) -> int:
    """Of what programs are numbered by: slots of all windows, parents of all windows, children."""
    pairs = 1
    for size in (votes.poses.shape[0], *votes.positions):
        pairs *= size
    return max(pairs * votes.num_parents, pairs * votes.num_slots, votes.poses.shape[0] * votes.num_children)


def on_device(poses: Tensor) -> AbstractContextManager:
    """Kernels start on the device that is current."""
    return torch.cuda.device(poses.device) if poses.is_cuda else nullcontext()
