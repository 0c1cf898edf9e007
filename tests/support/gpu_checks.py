"""How the kernels of GPUs are held against the reference in float64."""

import torch
from torch import Tensor

from support.cases import Case, class_case, conv_case, dense_case
from support.situations import amended, partially, with_logits
from torchcaps.routing import RoutingResult

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 5e-2}


def conv1d(**options) -> Case:
    """Windows of two slots that overlap; the last child is seen by none."""
    return conv_case(spatial=(6,), kernel=(3,), stride=(2,), num_types=1, **options)


def conv2d(**options) -> Case:
    """Windows of four slots that overlap in one direction; the last row is seen by none."""
    return conv_case(spatial=(5, 3), kernel=(2, 2), stride=(2, 1), num_types=1, **options)


# Few slots: the interpreter walks over them one by one. What belongs together in a layer is together here.
CASES = {
    "dense": lambda: dense_case(num_children=3),
    "dense, one of everything": lambda: dense_case(batch_size=1, num_children=1, num_parents=1, bias=False),
    "dense, shared, mask": lambda: dense_case(num_children=4, sharing="shared", mask=True),
    "dense, factorised matrix": lambda: dense_case(num_children=3, sharing="factorised", pose="matrix"),
    "class, mask": lambda: class_case(spatial=(1, 2), mask=True),
    "class, matrix": lambda: class_case(spatial=(2, 1), pose="matrix"),
    **{
        f"conv1d, masks, {kind}": lambda kind=kind: conv1d(mask=True, window_mask=True, num_parents=3).given(
            competition=kind
        )
        for kind in ("window", "global", "position")
    },
    **{
        f"conv2d, matrix, {kind}": lambda kind=kind: conv2d(pose="matrix").given(competition=kind)
        for kind in ("window", "global", "position")
    },
    **{
        f"conv1d, logits, factorised, {kind}": lambda kind=kind: with_logits(
            conv1d(sharing="factorised", window_mask=True)
        ).given(competition=kind)
        for kind in ("window", "global", "position")
    },
}
CHANGES = {
    "dense, amended, partial, logits": lambda: with_logits(
        partially(amended(dense_case(num_children=3, num_parents=4, mask=True)))
    ),
    **{
        f"conv1d, amended, partial, {kind}": lambda kind=kind: partially(
            amended(conv1d(mask=True, num_parents=3))
        ).given(competition=kind)
        for kind in ("window", "global", "position")
    },
}


def solve(routing, case: Case, dtype: torch.dtype, **options) -> tuple[RoutingResult, dict[str, Tensor]]:
    """The result, and the gradients of a fixed combination of poses and activations; options may be leaves, too."""
    given = {
        name: value
        for name, value in (case.options | options).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    leaves = {name: leaf.detach().to(dtype).requires_grad_() for name, leaf in (case.leaves | given).items()}
    votes = case.votes(**{name: leaves[name] for name in case.leaves})
    result = routing(votes, **case.options | options | {name: leaves[name] for name in given})
    outputs = [*result.capsules] if result.logits is None else [*result.capsules, result.logits]
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(x.shape, dtype=torch.float64, generator=generator).to(dtype) for x in outputs]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), seeds, materialize_grads=True)
    return result, dict(zip(leaves, gradients))


def assert_right(routing, case: Case, dtype: torch.dtype = torch.float64, **options) -> None:
    """Triton in `dtype` agrees with the reference in float64, each tensor relative to its largest entry."""
    if dtype != torch.float64:  # what it is given, rounded
        case.leaves.update({name: leaf.to(dtype).double() for name, leaf in case.leaves.items()})
    expected, expected_gradients = solve(routing, case, torch.float64, backend="reference", **options)
    ours, our_gradients = solve(routing, case, dtype, backend="triton", **options)
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
        assert error <= TOLERANCES[dtype] * scale, f"{name}: off by {error:.2e} beside {scale:.2e}"
