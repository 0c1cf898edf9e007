"""Mixed precision: every routing, on every backend, for every kind of votes, is what it is in float32."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from support.algorithms import ALL, weighs_by_activation
from support.cases import Case, class_case, conv_case, dense_case, tensor_case
from support.layers import KINDS, ROUTINGS, make_children, make_layer, scalar
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.precision import is_mixed, solved_type
from torchcaps.routing import dynamic_routing, em_routing, plan, use_backend, why_not
from torchcaps.votes import DenseVotes

HALVES = (torch.bfloat16, torch.float16)
VOTES = {
    "tensor": lambda: tensor_case((3, 5, 2, 4)),
    "dense": lambda: dense_case(batch_size=3, sharing="factorised"),
    "conv": lambda: conv_case(batch_size=3, mask=True, window_mask=True),
    "class": lambda: class_case(batch_size=3, pose="matrix"),
}


def mixed_leaves(case: Case, half: torch.dtype) -> dict[str, Tensor]:
    """What a network under autocast has: features in 16 bits, parameters in float32."""
    types = {"poses": half, "activations": half, "votes": half}
    return {name: leaf.to(half).to(types.get(name, torch.float32)) for name, leaf in case.leaves.items()}


def solve(name: str, kind: str, case: Case, leaves: dict[str, Tensor], backend: str, half: torch.dtype | None = None):
    """Everything a result holds, and the gradients of everything that was given."""
    leaves = {key: leaf.clone().requires_grad_() for key, leaf in leaves.items()}
    inputs, options = dict(leaves), {}
    if kind == "tensor" and weighs_by_activation(name):
        example = leaves["votes"]
        options["activations"] = inputs["activations"] = torch.arange(1, 16).div(16).to(example).view(3, 5)
        inputs["activations"].requires_grad_()
    with nullcontext() if half is None else torch.autocast("cpu", half):
        result = ALL[name](case.describe(**leaves), backend=backend, return_trace=True, **options)
    values = [*result.capsules, result.coupling, *(value for step in result.trace for value in step)]
    loss = sum((part.double() * torch.linspace(1, 2, part.numel()).view_as(part)).sum() for part in result.capsules)
    loss.backward()
    return values, {key: leaf.grad for key, leaf in inputs.items()}


def is_refused(name: str, kind: str, case: Case, leaves: dict[str, Tensor]) -> bool:
    """Whether no kernel takes the problem in float32."""
    return kind == "tensor" or why_not("fused", ALL[name], case.describe(**leaves)) is not None


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("backend", ["reference", "chunked", "fused"])
@pytest.mark.parametrize("kind", VOTES)
@pytest.mark.parametrize("name", ALL)
def test_autocast_changes_no_digit(name, kind, backend, half, one_example_chunks):
    case = VOTES[kind]()
    leaves = mixed_leaves(case, half)
    full = {key: leaf.float() for key, leaf in leaves.items()}
    if backend == "fused" and is_refused(name, kind, case, full):
        with pytest.raises(ValueError, match="backend 'fused' does not take this problem"):
            solve(name, kind, case, leaves, backend, half)
        return
    values, gradients = solve(name, kind, case, leaves, backend, half)
    expected, expected_gradients = solve(name, kind, case, full, backend)
    assert {value.dtype for value in values} == {torch.float32}
    for ours, theirs in zip(values, expected, strict=True):
        assert torch.equal(ours, theirs)
    for key, ours in gradients.items():
        theirs = expected_gradients[key]
        assert (ours is None) == (theirs is None), key
        if ours is not None:
            assert key not in leaves or ours.dtype == leaves[key].dtype
            assert torch.isfinite(ours).all()
            rounding = torch.finfo(ours.dtype).eps if ours.dtype in HALVES else 1e-5
            torch.testing.assert_close(ours.float(), theirs, rtol=rounding, atol=2e-5)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_parameters_in_16_bits_are_solved_in_float32_too(half):
    poses, weight = torch.randn(2, 5, 4).to(half), torch.randn(5, 3, 4, 6).to(half).requires_grad_()
    with torch.autocast("cpu", half):
        ours = dynamic_routing(DenseVotes(poses, weight)).capsules
    theirs = dynamic_routing(DenseVotes(poses.float(), weight.float())).capsules
    assert torch.equal(ours.poses, theirs.poses)
    ours.poses.sum().backward()
    assert weight.grad.dtype == half


def test_costs_given_as_numbers_are_not_rounded():
    votes, activations = torch.randn(2, 5, 3, 4).bfloat16(), torch.rand(2, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        ours = em_routing(votes, activations, beta_a=0.3, beta_u=0.7).capsules
    theirs = em_routing(votes.float(), activations.float(), beta_a=0.3, beta_u=0.7).capsules
    assert torch.equal(ours.activations, theirs.activations)


def test_initial_logits_may_have_either_type():
    votes, logits = torch.randn(2, 5, 3, 4).bfloat16(), torch.randn(2, 5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        ours = dynamic_routing(votes, initial_logits=logits).capsules
    assert torch.equal(ours.poses, dynamic_routing(votes.float(), initial_logits=logits).capsules.poses)


@pytest.mark.parametrize("backend", ["reference", "chunked", "fused"])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_give_the_same_on_every_backend(kind, routing, backend, one_example_chunks):
    layer = make_layer(kind, routing, dtype=torch.float32)
    children = Capsules(*(part.bfloat16() for part in make_children(kind, dtype=torch.float32)))
    full = Capsules(*(part.float() for part in children))
    reason = plan(layer.routing, layer.votes(full)).reasons[backend]
    with use_backend(backend):
        if reason is not None:
            with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=reason):
                layer(children)
            return
        with torch.autocast("cpu", torch.bfloat16):
            mixed = layer(children)
        exact = layer(full)
    assert mixed.poses.dtype == mixed.activations.dtype == torch.float32
    assert torch.equal(mixed.poses, exact.poses)
    assert torch.equal(mixed.activations, exact.activations)


@pytest.mark.parametrize("statistics", ["batch", "example"])
def test_norms_keep_the_digits(statistics):
    layer = make_layer("conv2d", "em", dtype=torch.float32, norm=nn.CapsuleNorm(2, statistics=statistics)).eval()
    children = Capsules(*(part.bfloat16() for part in make_children("conv2d", dtype=torch.float32)))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(children)
    exact = layer(Capsules(*(part.float() for part in children)))
    assert torch.equal(mixed.poses, exact.poses)
    assert torch.equal(mixed.activations, exact.activations)


def test_float64_stays_what_it_is():
    votes = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        ours = dynamic_routing(votes).capsules.poses
    assert torch.equal(ours, dynamic_routing(votes).capsules.poses)


def test_without_autocast_nothing_is_converted():
    votes = torch.randn(2, 5, 3, 4)
    with pytest.raises(TypeError, match="wider range of numbers than float16"):
        dynamic_routing(votes.half())
    assert dynamic_routing(votes.bfloat16()).capsules.poses.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=False), pytest.raises(TypeError, match="than float16"):
        dynamic_routing(votes.half())
    assert solved_type(votes.half()) == torch.float16
    with torch.autocast("cpu", torch.float16):
        assert solved_type(votes.half()) == torch.float32
    with pytest.raises(TypeError, match=r"weight has dtype torch.float32 but poses has torch.bfloat16; convert one"):
        DenseVotes(torch.randn(2, 5, 4).bfloat16(), torch.randn(5, 3, 4, 6))


@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_votes_of_two_types_are_refused_outside_the_block_that_described_them(types):
    """A kernel would read weights of another size than it thinks."""
    with torch.autocast("cpu", torch.bfloat16):
        votes = DenseVotes(torch.randn(2, 5, 4).to(types[0]), torch.randn(5, 3, 4, 6).to(types[1]))
    with pytest.raises(TypeError, match="weight has dtype .* but poses has .*; convert one of them"):
        dynamic_routing(votes)


def test_the_backward_pass_of_chunks_knows_no_autocast(one_example_chunks):
    poses, weight = torch.randn(3, 5, 4), torch.randn(5, 2, 4, 6, requires_grad=True)
    gradients = []
    for enabled in (True, False):
        result = dynamic_routing(DenseVotes(poses, weight), backend="chunked")
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            gradients += torch.autograd.grad(result.capsules.poses.sum(), weight)
    assert torch.equal(*gradients)


def test_explain_says_what_runs_under_autocast():
    votes = DenseVotes(torch.randn(2, 5, 4).bfloat16(), torch.randn(5, 3, 4, 6).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        planned = plan(dynamic_routing, votes)
    full = DenseVotes(votes.poses.float(), votes.weight.float())
    assert planned == plan(dynamic_routing, full)


def test_devices_without_autocast():
    assert not is_mixed("meta")
    with torch.autocast("cpu", torch.bfloat16):
        assert dynamic_routing(torch.ones(2, 5, 3, 4, device="meta"), backend="reference").capsules.poses.shape == (
            2,
            3,
            4,
        )


@pytest.mark.parametrize("routing", ROUTINGS)
@functorch_config.patch(backward_pass_autocast="off")
def test_a_layer_compiles_under_autocast(routing):
    """Torch's compiler gives the backward pass the autocast of the forward pass unless told otherwise."""
    torch._dynamo.reset()
    layer = make_layer("dense", routing, dtype=torch.float32)
    children = Capsules(*(part.bfloat16() for part in make_children("dense", dtype=torch.float32)))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    outputs, gradients = [], []
    for each in (layer, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(each(children))
        gradients.append(torch.autograd.grad(scalar(outputs[-1]), list(layer.parameters()), allow_unused=True))
    assert outputs[1].poses.dtype == torch.float32
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_layer_exports_under_autocast(routing):
    layer = make_layer("conv1d", routing, dtype=torch.float32)
    children = Capsules(*(part.bfloat16() for part in make_children("conv1d", dtype=torch.float32)))
    with torch.autocast("cpu", torch.bfloat16):
        program = torch.export.export(layer, (children,)).module()
        ours = program(children)
    with use_backend("reference"):
        theirs = layer(Capsules(*(part.float() for part in children)))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
