"""A layer, its children, and the gradients that arrive from above: what one call computes."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps import nn
from torchcaps.benchmark.cases import COMPILE, TEXTBOOK, Case
from torchcaps.benchmark.textbook import textbook_routing
from torchcaps.capsules import Capsules, squash
from torchcaps.routing import Backend, Plan, plan, use_backend
from torchcaps.routing.backend import REFERENCE

SEED = 0


class Workload:
    """A case made real, the same for every variant and dtype.

    Args:
        case: what to build.
        dtype: of everything; the numbers are drawn in float64 and rounded.
        device: where everything lies.
    """

    def __init__(self, case: Case, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.case = case
        generator = torch.Generator().manual_seed(SEED)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.layer = _make_layer(case).to(device, dtype)
        self.children = _make_children(case, generator, dtype, device)
        self.compiled: Callable[[Capsules], Capsules] | None = None
        parents = (case.batch_size, *case.positions, case.num_parents)
        drawn = [
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((*parents, case.out_size), parents)
        ]
        self.from_above = tuple(gradient.to(device, dtype) for gradient in drawn)

    def why_not(self, backend: str) -> str | None:
        """Why a backend does not take this layer; None if it does."""
        return None if backend in (TEXTBOOK, COMPILE) else self.plan().reasons[backend]

    def plan(self) -> Plan:
        """Which backends take this layer."""
        return plan(self.layer.routing, self.layer.votes(self.children))

    def compile(self) -> None:
        """Let torch.compile translate the layer for the variant "compile"."""
        self.compiled = torch.compile(self.layer, dynamic=False)

    def forward(self, variant: str | Backend) -> Capsules:
        """Inference."""
        with torch.no_grad():
            return self._parents(variant)

    def forward_backward(self, variant: str | Backend) -> tuple[Tensor | None, ...]:
        """A training step without its optimiser: gradients of children and parameters."""
        return self.values_and_gradients(variant)[1]

    def values_and_gradients(self, variant: str | Backend) -> tuple[Capsules, tuple[Tensor | None, ...]]:
        """The parents, and the gradients of children and parameters (None where nothing depends on them)."""
        parents = self._parents(variant)
        leaves = (*self.children, *self.layer.parameters())
        return parents, torch.autograd.grad(parents, leaves, self.from_above, allow_unused=True)

    def _parents(self, variant: str | Backend) -> Capsules:
        if variant == TEXTBOOK:
            return textbook_routing(self.children.poses, self.layer.weight, **self.case.options)
        backend, layer = (REFERENCE, self.compiled) if variant == COMPILE else (variant, self.layer)
        assert layer is not None, "compile() comes first"
        with use_backend(backend):
            return layer(self.children)


def _make_children(case: Case, generator: torch.Generator, dtype: torch.dtype, device: str) -> Capsules:
    """Vector poses as primary capsules squash them; matrix poses with activations of their own."""
    shape = (case.batch_size, *case.spatial, case.num_children)
    poses = torch.randn(*shape, case.in_size, generator=generator, dtype=torch.float64)
    activations = torch.rand(shape, generator=generator, dtype=torch.float64)
    if case.pose == "vector":
        poses = squash(poses)
        activations = Capsules.from_poses(poses).activations
    return Capsules(*(part.to(device, dtype).requires_grad_() for part in (poses, activations)))


def _make_layer(case: Case) -> nn.CapsuleLayer:
    routing = nn.create_routing(case.routing, **case.options)
    sizes = case.num_children, case.num_parents, case.in_size, case.out_size
    # routings are compared on equal terms: one of them asks its layer to normalise the weights first
    common = {"routing": routing, "pose": case.pose, "normalise_weights": False, "dtype": torch.float64}
    if case.layer == "dense":
        return nn.DenseCaps(*sizes, **common)
    if case.layer == "class":
        return nn.ClassCaps(*sizes, coordinates=case.pose == "matrix", **common)
    kind = nn.ConvCaps1d if len(case.spatial) == 1 else nn.ConvCaps2d
    return kind(*sizes, case.kernel_size, case.stride, **common)
