"""What every softmax kernel must withstand: extreme inputs, threads, other builds, compilers, forks."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.cases import conv_case, dense_case, rand, randn
from support.situations import amended, with_logits
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import dynamic_routing, entropy_routing, kmeans_routing, max_min_routing
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxAlgorithm, SoftmaxOptions
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import ConvVotes, DenseVotes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

TESTS = Path(__file__).parents[1]
ROUTINGS = {
    "dynamic": (dynamic_routing, {}),
    "kmeans dot": (kmeans_routing, {"metric": "dot"}),
    "kmeans euclidean": (kmeans_routing, {"metric": "euclidean"}),
    "entropy": (entropy_routing, {}),
    "max-min": (max_min_routing, {}),
}
KERNELS = {
    "dynamic": SoftmaxOptions(0, 3),
    "detached": SoftmaxOptions(0, 3, detach=True),
    "kmeans dot": SoftmaxOptions(1, 3, inverse_temperatures=(2.0, 2.0, 2.0)),
    "kmeans euclidean": SoftmaxOptions(2, 3),
    "entropy": SoftmaxOptions(3, 3, alphas=(0.3, 0.2, 0.1)),
    "max-min": SoftmaxOptions(4, 3),
}


@pytest.fixture
def empty_is_nan():
    """torch.empty comes filled with NaN, so that an entry no kernel writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def extremes(batch_size=3, num_children=5):
    """Poses and weights of a dense layer that break careless arithmetic."""
    poses, weight = randn(batch_size, num_children, 4), randn(num_children, 3, 4, 6)
    return {
        "zeros": (torch.zeros_like(poses), weight),
        "zero weights": (poses, torch.zeros_like(weight)),
        "huge votes": (1e3 * poses, 1e3 * weight),
        "tiny votes": (1e-10 * poses, 1e-10 * weight),
        "equal votes": (torch.ones_like(poses), torch.ones_like(weight)),
        "one huge child": (poses * torch.tensor([1e6, 1, 1, 1, 1]).view(1, -1, 1), weight),
    }


@pytest.mark.usefixtures("empty_is_nan")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True], ids=["all children", "an example without children"])
@pytest.mark.parametrize("inputs", extremes())
@pytest.mark.parametrize("name", ROUTINGS)
def test_everything_is_finite(name, inputs, masked, dtype):
    routing, options = ROUTINGS[name]
    poses, weight = (tensor.to(dtype).requires_grad_() for tensor in extremes()[inputs])
    activations = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0], dtype=dtype).repeat(3, 1).requires_grad_()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0] = not masked
    votes = DenseVotes(Capsules(poses, activations), weight, mask=mask)
    result = routing(votes, amend=True, backend="fused", **options)
    gradients = torch.autograd.grad(result.capsules.poses.sum(), (poses, weight, activations))
    for tensor in (*result.capsules, result.coupling, *gradients):
        assert tensor.isfinite().all()
    if masked:
        assert not result.capsules.poses[0].any()
        assert not gradients[0][0].any()


@pytest.mark.usefixtures("empty_is_nan")
@pytest.mark.parametrize("name", ROUTINGS)
def test_masked_children_may_hold_anything(name):
    routing, options = ROUTINGS[name]
    case = dense_case(batch_size=9, mask=True)
    clean = routing(case.votes(), backend="fused", **options).capsules.poses
    poses = torch.where(case.mask.unsqueeze(-1), case.leaves["poses"], torch.nan).requires_grad_()
    dirty = routing(case.votes(poses=poses), backend="fused", **options).capsules.poses
    assert torch.equal(clean, dirty)
    gradient = torch.autograd.grad(dirty.sum(), poses)[0]
    assert gradient.isfinite().all()
    assert not gradient[~case.mask].any()


@pytest.mark.usefixtures("empty_is_nan")
def test_windows_that_do_not_exist_and_children_that_nobody_sees():
    case = conv_case(window_mask=True)
    poses = case.leaves["poses"].clone().requires_grad_()
    result = dynamic_routing(case.votes(poses=poses), backend="fused")
    assert not result.capsules.poses[~case.window_mask].any()
    assert not result.coupling[~case.window_mask].any()
    gradient = torch.autograd.grad(result.capsules.poses.sum(), poses)[0]
    assert gradient.isfinite().all()
    assert not gradient[:, -1].any()  # the last row is seen by no window


@pytest.mark.usefixtures("empty_is_nan")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-10, 1e3])
@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("name", ROUTINGS)
def test_everything_is_finite_where_windows_compete(name, competition, scale, dtype):
    """Votes of 1e6, logits as large, and examples without children or windows."""
    routing, options = ROUTINGS[name]
    case = with_logits(amended(conv_case(mask=True, window_mask=True)))
    case.mask[0], case.window_mask[1, 0] = False, False
    leaves = {key: leaf.to(dtype) for key, leaf in case.leaves.items()}
    leaves |= {key: (scale * leaves[key]) for key in ("poses", "weight")}
    logits = (1e6 * case.options["initial_logits"]).to(dtype)
    leaves = {key: leaf.requires_grad_() for key, leaf in (leaves | {"initial_logits": logits}).items()}
    votes = case.votes(**{key: leaves[key] for key in case.leaves})
    result = routing(
        votes, amend=True, competition=competition, initial_logits=leaves["initial_logits"], backend="fused", **options
    )
    gradients = torch.autograd.grad(result.capsules.poses.sum(), list(leaves.values()))
    for tensor in (*result.capsules, result.coupling, *gradients):
        assert tensor.isfinite().all()
    assert not result.capsules.poses[0].any()
    assert not result.coupling[1, 0].any()
    assert not gradients[0][0].any()


def wide_case(kind: str) -> tuple[dict, type]:
    """Sizes with several tiles, groups and both ways to split the work."""
    if kind == "dense":
        return {"poses": randn(150, 40, 8), "weight": 0.3 * randn(40, 10, 8, 16)}, DenseVotes
    return {"poses": randn(23, 40, 3, 8), "weight": 0.3 * randn(3, 3, 5, 8, 8)}, ConvVotes


def gradients_of(leaves: dict, describe, routing, dtype, **options):
    leaves = {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}
    poses = routing(describe(leaves["poses"], leaves["weight"]), **options).capsules.poses
    return poses, *torch.autograd.grad(poses.square().sum(), list(leaves.values()))


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("num_threads", [1, 3, 10])
def test_threads(num_threads, name, kind):
    routing, options = ROUTINGS[name]
    leaves, describe = wide_case(kind)
    expected = gradients_of(leaves, describe, routing, torch.float64, backend="reference", **options)
    torch.set_num_threads(num_threads)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        first, second = (gradients_of(leaves, describe, routing, dtype, backend="fused", **options) for _ in range(2))
        for ours, again, theirs in zip(first, second, expected):
            assert torch.equal(ours, again), "the same call gives the same bits"
            assert (ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("num_threads", [1, 3, 10])
def test_threads_where_windows_compete(num_threads, name, competition):
    """Examples that a thread takes alone, and the rest that all take together."""
    routing, options = ROUTINGS[name]
    leaves, describe = wide_case("conv")
    logits = randn(*describe(*leaves.values()).coupling_shape)
    options = {"competition": competition, "initial_logits": logits} | options
    expected = gradients_of(leaves, describe, routing, torch.float64, backend="reference", **options)
    torch.set_num_threads(num_threads)
    first, second = (
        gradients_of(leaves, describe, routing, torch.float64, backend="fused", **options) for _ in range(2)
    )
    for ours, again, theirs in zip(first, second, expected):
        assert torch.equal(ours, again), "the same call gives the same bits"
        assert (ours - theirs).abs().max() <= 1e-9 * theirs.abs().max()


@pytest.mark.parametrize("make", [dense_case, conv_case], ids=["dense", "conv"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_trace_is_that_of_the_reference(name, make):
    routing, options = ROUTINGS[name]
    case = make()
    leaves = {key: leaf.requires_grad_() for key, leaf in case.leaves.items()}
    expected = routing(case.votes(**leaves), return_trace=True, backend="reference", **options)
    result = routing(case.votes(**leaves), return_trace=True, backend="fused", **options)
    assert result.capsules.poses.requires_grad
    assert len(result.trace) == len(expected.trace)
    for step, wanted in zip(result.trace, expected.trace, strict=True):
        for value, reference in zip(step, wanted, strict=True):
            assert not value.requires_grad
            torch.testing.assert_close(value, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("batch_size", [5, 40], ids=["one group, past the caches", "two groups, added up"])
def test_gradients_of_weights_larger_than_the_caches(batch_size):
    torch.set_num_threads(2)
    leaves = {"poses": randn(batch_size, 600, 8), "weight": 0.1 * randn(600, 120, 8, 16)}
    found = gradients_of(leaves, DenseVotes, dynamic_routing, torch.float32, backend="fused", num_iterations=2)
    wanted = gradients_of(leaves, DenseVotes, dynamic_routing, torch.float64, backend="chunked", num_iterations=2)
    for value, expected in zip(found, wanted, strict=True):
        assert (value - expected).abs().max() < 1e-5 * expected.abs().max()


def kernel_arguments(options: SoftmaxOptions, case) -> tuple:
    """What the op is called with; floating-point tensors are leaves that ask for a gradient."""
    votes = lower(case.votes())
    if not case.options.get("amend"):
        votes = votes._replace(activations=None)
    tensors = (
        value.detach().clone().requires_grad_(value.is_floating_point()) if isinstance(value, torch.Tensor) else value
        for value in votes
    )
    logits = case.options.get("initial_logits")
    logits = None if logits is None else logits.reshape(votes.coupling_shape).requires_grad_()
    options = options._replace(competition=KINDS.index(case.options.get("competition", "window")))
    is_attention = options.algorithm == SoftmaxAlgorithm.ATTENTION
    affine = torch.randn(2, votes.vote_size, dtype=votes.poses.dtype).requires_grad_() if is_attention else None
    return (*tensors, case.options.get("partial"), logits, *options, affine, True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: dense_case(mask=True),
        lambda: amended(conv_case(window_mask=True)),
        lambda: with_logits(amended(conv_case()).given(competition="global")),
        lambda: conv_case().given(competition="position"),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_opcheck(kernel, make):
    arguments = kernel_arguments(KERNELS[kernel], make())
    torch.library.opcheck(SOFTMAX.forward, arguments)
    state = SOFTMAX.forward(*arguments)[-1].detach()
    torch.library.opcheck(SOFTMAX.couplings, (state, 1, *arguments[:-1]), test_utils="test_faketensor")


@pytest.mark.parametrize("name", ROUTINGS)
def test_compiles_without_breaks(name):
    routing, options = ROUTINGS[name]
    leaves, describe = wide_case("dense")
    poses, weight = leaves["poses"][:4].float().requires_grad_(), leaves["weight"].float().requires_grad_()

    def solve(poses, weight):
        return routing(describe(poses, weight), backend="fused", **options).capsules.poses

    expected = solve(poses, weight)
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")(poses, weight)
    torch.testing.assert_close(compiled, expected)
    ours, theirs = (torch.autograd.grad(x.sum(), (poses, weight)) for x in (compiled, expected))
    torch.testing.assert_close(ours, theirs)


def test_double_backward_is_refused():
    case = dense_case()
    poses = case.leaves["poses"].requires_grad_()
    out = dynamic_routing(case.votes(poses=poses), backend="fused").capsules.poses
    gradient = torch.autograd.grad(out.sum(), poses, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiable once"):
        gradient.sum().backward()


def test_strided_inputs():
    poses, weight = randn(4, 6, 3).transpose(1, 2), randn(5, 8, 6, 3).permute(3, 1, 2, 0)
    ours, theirs = (dynamic_routing(DenseVotes(poses, weight), backend=name) for name in ("fused", "reference"))
    torch.testing.assert_close(ours.capsules.poses, theirs.capsules.poses, rtol=1e-9, atol=1e-10)


def test_only_wanted_gradients():
    case = amended(dense_case())
    bias = case.leaves["bias"].requires_grad_()
    poses = dynamic_routing(case.votes(bias=bias), backend="fused", **case.options).capsules.poses
    ours = torch.autograd.grad(poses.sum(), bias)[0]
    poses = dynamic_routing(case.votes(bias=bias), backend="reference", **case.options).capsules.poses
    torch.testing.assert_close(ours, torch.autograd.grad(poses.sum(), bias)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.skipif(bool(os.environ.get("TORCHCAPS_POISON")), reason="runs inside such a process already")
@pytest.mark.parametrize("instruction_set", library.INSTRUCTION_SETS)
def test_other_builds_and_poisoned_scratch(instruction_set):
    if not library.library_path(instruction_set).exists():
        pytest.skip(f"no {instruction_set} build for this processor")
    files = [str(TESTS / "routing" / name / "test_fused.py") for name in ("dynamic", "kmeans", "entropy", "max_min")]
    environment = os.environ | {"TORCHCAPS_ISA": instruction_set, "TORCHCAPS_POISON": "1", "OMP_NUM_THREADS": "1"}
    chosen = "situations or lanes or pose_and_vote or matrix_sides or larger_than"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files, __file__]
    finished = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-3000:]


def route_in_child(votes, queue):
    queue.put(dynamic_routing(votes, backend="fused").capsules.poses.sum().item())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_hang():
    votes = DenseVotes(randn(40, 30, 8), randn(30, 10, 8, 16))
    expected = dynamic_routing(votes, backend="fused").capsules.poses.sum().item()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=route_in_child, args=(votes, queue))
    child.start()
    result = queue.get(timeout=60)
    child.join(timeout=60)
    assert result == pytest.approx(expected, rel=1e-9)


def test_release_scratch():
    votes = DenseVotes(randn(40, 30, 8), randn(30, 10, 8, 16))
    before = dynamic_routing(votes, backend="fused").capsules.poses
    library.release_scratch()
    assert torch.equal(dynamic_routing(votes, backend="fused").capsules.poses, before)


def test_activations_of_zero_and_one_are_counted_as_rows():
    """Amended couplings: a child of activation 0 has no say, one of 1 a full one."""
    poses, weight = rand(2, 6, 4), randn(6, 3, 4, 5)
    activations = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    kept = activations.bool()
    amended_poses = dynamic_routing(
        DenseVotes(Capsules(poses, activations.repeat(2, 1)), weight), amend=True, backend="fused"
    ).capsules.poses
    fewer = dynamic_routing(DenseVotes(poses[:, kept], weight[kept]), backend="fused").capsules.poses
    torch.testing.assert_close(amended_poses, fewer, rtol=1e-12, atol=1e-12)
