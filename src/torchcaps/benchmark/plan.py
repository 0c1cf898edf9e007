"""What a network costs before anyone builds it: parameters, FLOP, bytes per example by backend, and the time at best.

The network is made of tensors that have shapes alone and takes one picture through: nothing is computed, and nothing
takes memory, however large it is.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.capsules import Capsules
from torchcaps.models import Model, create_model
from torchcaps.models.loading import NeverFilled
from torchcaps.models.registry import find_model
from torchcaps.routing import RoutingResult, routing_names, use_backend
from torchcaps.routing.problem import Problem
from torchcaps.routing.registry import find_routing
from torchcaps.votes import LinearVotes

BACKWARD_FACTOR = 3  # forward and backward together: two products for every one of the forward pass
BYTES = 4  # of float32
KEPT_PER_PARAMETER = 4  # the weight, its gradient, and two moments of AdamW
TIMES_MOVED = 4  # what is kept: written and read in the forward pass, read and met by its gradient in the backward pass


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """What a network of these shapes costs.

    Attributes:
        model: its name.
        image_shape: (channels, height, width).
        num_classes: J.
        parameters: numbers that are learned.
        flops: of a forward pass of one picture; a routing that does not tell its cost counts its votes alone.
        routing_flops: those of them that routing and its votes take.
        kept: bytes of one picture that a forward pass keeps for the backward pass, by backend; of kernels it is an
            estimate.
        formed: bytes of the votes of one picture, if they were formed.
    """

    model: str
    image_shape: tuple[int, int, int]
    num_classes: int
    parameters: int
    flops: int
    routing_flops: int
    kept: Mapping[str, int]
    formed: int

    def memory(self, batch_size: int, backend: str) -> int:
        """Bytes of a training step with AdamW: weights, gradients, moments, and what is kept of a batch."""
        chunk = max(0, self.kept["reference"] - self.kept["chunked"]) if backend == "chunked" else 0
        return KEPT_PER_PARAMETER * BYTES * self.parameters + batch_size * self.kept[backend] + chunk

    def step_seconds(self, batch_size: int, backend: str, flops_per_second: float, bytes_per_second: float) -> float:
        """The time of a training step at best: its work at these rates, whichever takes longer."""
        compute = BACKWARD_FACTOR * batch_size * self.flops / flops_per_second
        moved = TIMES_MOVED * (batch_size * self.kept[backend] + BYTES * self.parameters)
        return max(compute, moved / bytes_per_second)


def plan_network(model: str, *, image_shape: tuple[int, int, int], num_classes: int, **options: Any) -> NetworkPlan:
    """Plan a network of images by name.

    Args:
        model: see `torchcaps.models.list_models`.
        image_shape: (channels, height, width).
        num_classes: J.
        **options: more arguments of the model.

    Example:
        >>> plan = plan_network("capsnet", image_shape=(1, 28, 28), num_classes=10)
        >>> plan.parameters
        8215568
        >>> plan.formed == 4 * 1152 * 10 * 16
        True
    """
    if (kind := find_model(model).kind) != "image":
        raise ValueError(f"a plan is made of networks of images, and {model} takes {kind}s")
    with torch.device("meta"), NeverFilled():
        network = create_model(model, image_shape=image_shape, num_classes=num_classes, **options)
        recorder = _Recorder()
        counter = FlopCounterMode(display=False)
        with use_backend(recorder), counter:
            lean = _kept_bytes(network, image_shape)
        kept = {"fused": lean + recorder.state_bytes, "chunked": lean}
        with use_backend("reference"):
            kept["reference"] = _kept_bytes(network, image_shape)
    return NetworkPlan(
        model=model,
        image_shape=image_shape,
        num_classes=num_classes,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        flops=int(counter.get_total_flops()) + recorder.flops,
        routing_flops=recorder.flops,
        kept=kept,
        formed=recorder.votes_bytes,
    )


def _kept_bytes(network: Model, image_shape: tuple[int, int, int]) -> int:
    """Bytes that autograd keeps of one picture; each piece of memory once, weights not counted."""
    storages: dict[int, Tensor] = {}  # the tensors stay alive, so that no number is given twice
    weights = {_storage(parameter) for parameter in network.parameters()}
    batch_of_one = torch.zeros(1, *image_shape)

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in weights:
            storages.setdefault(_storage(tensor), tensor)
        return tensor

    with _without_statistics(network), saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
        network(batch_of_one)
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@contextmanager
def _without_statistics(network: Model):
    """In evaluation: norms keep as much as in training, and one picture has no statistics."""
    network.eval()
    try:
        yield
    finally:
        network.train()


class _Recorder:
    """Solves nothing: notes what a routing would cost, and answers with shapes."""

    name = "recorder"

    def __init__(self) -> None:
        self.flops = self.votes_bytes = self.state_bytes = 0

    def why_not(self, problem: Problem) -> str | None:
        return None

    def run(self, problem: Problem) -> RoutingResult:
        votes = problem.votes
        entries = prod(votes.coupling_shape) * votes.vote_size
        inner = votes.weight.shape[2] if isinstance(votes, LinearVotes) else 0
        num_iterations = getattr(problem.options, "num_iterations", 0)
        name = problem.algorithm.name
        cost = find_routing(name).cost if name in routing_names() else None
        self.flops += entries * (2 * inner + (0 if cost is None else cost(num_iterations)))
        self.votes_bytes += problem.votes_bytes
        parents = prod(votes.positions) * votes.num_parents
        # what kernels keep, and gradients of it: the children, and sums and squares of the parents in each iteration
        self.state_bytes += 2 * BYTES * votes.num_children * (votes.example.shape[-1] + 1)
        self.state_bytes += 2 * BYTES * max(1, num_iterations) * parents * (2 * votes.vote_size + 2)
        shape = (votes.example.shape[0], *votes.positions, votes.num_parents)
        poses = votes.example.new_empty(*shape, votes.vote_size).requires_grad_()
        activations = votes.example.new_empty(shape).requires_grad_()
        coupling = votes.example.new_empty(0)
        return RoutingResult(Capsules(poses, activations), coupling)
