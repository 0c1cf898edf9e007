"""The backends of this package.

`reference` is eager torch and the specification; `chunked` is the same computation for a few examples at a time,
recomputed in the backward pass; `fused` never forms the votes.
"""

import torch

from torchcaps.routing.backend import REFERENCE, register_backend
from torchcaps.routing.chunks import solve_in_chunks
from torchcaps.routing.ops.bodies import devices_of, why_not_unasked
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult

# The chunked backend forms at most this many bytes of votes at a time, but always one example's, and more where the
# weights are large: every chunk makes a gradient of their size, so that too many chunks would only move weights.
CHUNK_BYTES = 8 * 2**20  # on a CPU, whose caches are small and whose calls are cheap
CHUNK_SHARE_OF_WEIGHTS = 0.25
# Other devices have many more units to keep busy, and every call costs a launch: chunks are a share of their memory.
# The reference of EM keeps ten tensors of the size of its votes, so that a chunk takes about a sixth of the device.
CHUNK_SHARE_OF_MEMORY = 1 / 64
LEAST_CHUNK_BYTES = 64 * 2**20
USUAL_MEMORY = 16 * 2**30  # of a device that does not tell


class Reference:
    """The specification in eager torch, on any device, in any floating-point type but float16."""

    name = REFERENCE

    def why_not(self, problem: Problem) -> str | None:
        return None

    def run(self, problem: Problem) -> RoutingResult:
        return problem.algorithm.reference(problem)


class Chunked:
    """The reference for a few examples at a time: memory is set by the chunk, not by the batch.

    Examples are independent, so this is exact; with several chunks each is solved again in the backward pass.
    """

    name = "chunked"

    def why_not(self, problem: Problem) -> str | None:
        if torch.compiler.is_compiling():
            return "chunks would tie a compiled graph to one batch size"
        return None

    def run(self, problem: Problem) -> RoutingResult:
        batch_size = problem.votes.example.shape[0]
        device = problem.votes.example.device
        most = max(
            chunk_bytes(device.type, total_memory(device)), int(CHUNK_SHARE_OF_WEIGHTS * problem.votes.weight_bytes)
        )
        chunk_size = max(1, most * batch_size // max(1, problem.votes_bytes))
        if chunk_size >= batch_size:
            return problem.algorithm.reference(problem)
        return solve_in_chunks(problem, chunk_size)


class Fused:
    """Kernels of the device of the votes, which are never formed."""

    name = "fused"

    def why_not(self, problem: Problem) -> str | None:
        lowering = problem.algorithm.lowering
        if lowering is None:
            return f"{problem.algorithm.name} routing has no kernel"
        device_type = problem.votes.example.device.type
        if device_type not in (known := devices_of(self.name)):
            return f"it has kernels for votes on {' and '.join(known) or 'no device'}, these are on {device_type}"
        return lowering.why_not(problem)

    def run(self, problem: Problem) -> RoutingResult:
        assert problem.algorithm.lowering is not None
        result = problem.algorithm.lowering.run(problem)
        if problem.return_trace and result.trace is None:
            # A trace is a record without gradients: what the kernel does not keep, another backend tells.
            witness = Reference() if torch.compiler.is_compiling() else Chunked()
            with torch.no_grad():
                result.trace = witness.run(problem).trace
        return result


class Triton(Fused):
    """The same on a GPU. It is new: "auto" takes it where `torchcaps doctor --verify` has found it right."""

    name = "triton"

    def why_not_unasked(self, problem: Problem) -> str | None:
        """Why "auto" does not take it, though it would run."""
        return why_not_unasked(problem.votes.example.device)


def chunk_bytes(device_type: str, memory: int | None) -> int:
    """Votes that are formed at a time on a device with this much memory in all, None where it does not tell.

    Example:
        >>> [chunk_bytes(*device) // 2**20 for device in (("cpu", None), ("cuda", 24 * 2**30))]
        [8, 384]
    """
    if device_type == "cpu":
        return CHUNK_BYTES
    return max(LEAST_CHUNK_BYTES, int(CHUNK_SHARE_OF_MEMORY * (memory or USUAL_MEMORY)))


def total_memory(device: torch.device) -> int | None:
    """Memory of a device in all, not what is free now: the same problem is cut alike, and its results repeat."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


for backend in (Reference(), Chunked(), Triton(), Fused()):  # the last is asked first
    register_backend(backend)
