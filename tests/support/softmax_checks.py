"""How the fused softmax routings are held against the reference in float64."""

import torch
from torch import Tensor

from support.cases import Case
from support.situations import CHANGES, SITUATIONS
from torchcaps.routing import RoutingResult

# Problems whose votes are described, so that a kernel can form them.
DESCRIBED = {
    name: make
    for name, make in (SITUATIONS | CHANGES).items()
    if any(kind in name for kind in ("dense", "class", "conv", "amend, mask", "amend, partial"))
}


def solve(routing, case: Case, dtype: torch.dtype, **options) -> tuple[RoutingResult, dict[str, Tensor]]:
    """The result, and the gradients of a fixed combination of poses and activations."""
    options = case.options | options
    given = {name: options[name] for name in ("initial_logits", "scale", "shift", "bias") if name in options}
    leaves = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in case.leaves.items()}
    given = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in given.items()}
    result = routing(case.votes(**leaves), **options | given)
    leaves |= {f"option {name}": leaf for name, leaf in given.items()}
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(x.shape, dtype=torch.float64, generator=generator).to(dtype) for x in result.capsules]
    gradients = torch.autograd.grad(tuple(result.capsules), list(leaves.values()), seeds, materialize_grads=True)
    return result, dict(zip(leaves, gradients))


def assert_like_reference(routing, case: Case, dtype: torch.dtype = torch.float64, **options) -> None:
    """Fused in `dtype` agrees with the reference in float64, each tensor relative to its largest entry."""
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    expected, expected_gradients = solve(routing, case, torch.float64, backend="reference", **options)
    ours, our_gradients = solve(routing, case, dtype, backend="fused", **options)
    values = {
        "poses": (ours.capsules.poses, expected.capsules.poses),
        "activations": (ours.capsules.activations, expected.capsules.activations),
        "coupling": (ours.coupling, expected.coupling),
    }
    gradients = {f"gradient of {name}": (our_gradients[name], theirs) for name, theirs in expected_gradients.items()}
    for name, (got, theirs) in (values | gradients).items():
        assert got.dtype == dtype
        assert got.shape == theirs.shape
        scale = max(theirs.abs().max().item(), 1e-3)
        error = (got.double() - theirs).abs().max().item()
        assert error <= tolerance * scale, f"{name}: off by {error:.2e} beside {scale:.2e}"


def shrunk(case: Case, factor: float = 0.3) -> Case:
    """Smaller votes: sharp couplings would magnify the rounding of float32."""
    for name in {"weight", "bias"} & case.leaves.keys():
        case.leaves[name].mul_(factor)
    return case
