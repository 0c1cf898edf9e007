"""How the members of the EM family are held against the reference in float64: values, couplings and gradients."""

from types import SimpleNamespace

import torch

from support.cases import randn
from support.situations import SITUATIONS
from torchcaps.capsules import Capsules
from torchcaps.routing import use_backend
from torchcaps.routing.ops.operator import flatten
from torchcaps.votes import ConvVotes

# Situations whose votes are described, so that a kernel can form them.
DESCRIBED = [name for name in SITUATIONS if any(kind in name for kind in ("dense", "class", "conv"))]
VALUES = {"rtol": 1e-9, "atol": 1e-10}
OF_THE_CALL = ("beta_a", "beta_u", "beta_use", "beta_ignore", "initial_logits")  # the other leaves are the votes'

EXTREMES = {
    "huge": lambda poses, activations: (poses * 1e6, activations),
    "tiny": lambda poses, activations: (poses * 1e-6, activations),
    "vanishing": lambda poses, activations: (poses * 1e-20, activations),
    "zero": lambda poses, activations: (poses * 0, activations),
    "equal": lambda poses, activations: (torch.ones_like(poses), activations),
    "inactive": lambda poses, activations: (poses, activations * 0),
    "hardly active": lambda poses, activations: (poses, activations * 1e-30),
    "fully active": lambda poses, activations: (poses, torch.ones_like(activations)),
    "outlier": lambda poses, activations: (poses.index_fill(-2, torch.tensor([0]), 1e6), activations),
}


def split(leaves):
    """Leaves of the votes, and those of the call."""
    return (
        {name: leaf for name, leaf in leaves.items() if name not in OF_THE_CALL},
        {name: leaf for name, leaf in leaves.items() if name in OF_THE_CALL},
    )


def solve(routing, make_votes, leaves, backend, **options):
    """The result, and the gradients of a fixed combination of poses, activations and logits by the leaves."""
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    of_votes, of_call = split(leaves)
    result = routing(make_votes(**of_votes), **of_call, backend=backend, **options)
    outputs = [*result.capsules, *([] if result.own_logits is None else [result.logits])]
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(x.shape, dtype=torch.float64, generator=generator).to(x.dtype) for x in outputs]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds, materialize_grads=True)
    return result, dict(zip(leaves, gradients))


# What Heinsen's routing ignores is all less what it uses, so that one gradient is a difference of sums like the other.
BESIDE = {"beta_ignore": "beta_use"}


def assert_like_reference(routing, make_votes, leaves, *, values=VALUES, gradient=1e-9, dtype=torch.float64, **options):
    """Fused in `dtype` agrees with the reference in float64; gradients relative to the largest of their tensor."""
    expected, expected_gradients = solve(routing, make_votes, leaves, "reference", **options)
    cast = {name: leaf.to(dtype) for name, leaf in leaves.items()}
    ours, our_gradients = solve(routing, make_votes, cast, "fused", **options)
    for name in Capsules._fields:
        ours_part, expected_part = getattr(ours.capsules, name), getattr(expected.capsules, name)
        torch.testing.assert_close(ours_part.double(), expected_part, **values, msg=lambda text, n=name: f"{n}: {text}")
    torch.testing.assert_close(ours.coupling.double(), expected.coupling, **values)
    assert (ours.own_logits is None) == (expected.own_logits is None)
    if expected.own_logits is not None:
        torch.testing.assert_close(_existing_logits(ours), _existing_logits(expected), **values)
    for name, theirs in expected_gradients.items():
        scale = max(theirs.abs().max().item(), expected_gradients[BESIDE.get(name, name)].abs().max().item(), 1e-3)
        error = (our_gradients[name].double() - theirs).abs().max().item()
        assert error <= gradient * scale, f"gradient of {name}: {error:.2e} beside {scale:.2e}"


def _existing_logits(result):
    """Positions that do not exist have activation 0 and any logit."""
    return torch.where(result.capsules.activations > 0, result.logits, 0).double()


def matrix_leaves(shape, owners, num_parents, bias=False, spread=0.3):
    """4 x 4 poses and weights near the identity."""
    leaves = {
        "poses": randn(*shape, 16),
        "activations": 0.9 * torch.rand(*shape, dtype=torch.float64) + 0.05,
        "weight": torch.eye(4, dtype=torch.float64) + spread * randn(*owners, num_parents, 4, 4),
    }
    if bias:
        leaves["bias"] = 0.3 * randn(*owners, num_parents, 16)
    return leaves


def conv_matrix(batch_size=2, spatial=(5, 5), num_types=3, num_parents=5, bias=False, **options):
    """Leaves of a 3 x 3 convolutional layer of matrix capsules, and the votes they make."""

    def votes(poses, activations, weight, bias=None):
        return ConvVotes(Capsules(poses, activations), weight, bias=bias, pose="matrix", **{"stride": 2} | options)

    return votes, matrix_leaves((batch_size, *spatial, num_types), (3, 3, num_types), num_parents, bias)


def operator_arguments(routing, votes, **options):
    """What the routing gives to the operator, which is to keep its state."""
    seen = []

    def record(problem):
        seen.append(problem.algorithm.lowering.inputs(problem))
        return problem.algorithm.reference(problem)

    with use_backend(SimpleNamespace(run=record)):
        routing(votes, **options)
    return (*flatten(seen[0]), True)
