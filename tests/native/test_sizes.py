"""Layers at the edges of 32 bits: what passes 2^31 is computed as what does not, or refused in words."""

import ctypes

import numpy as np
import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.native.struct import SoftmaxOptionsStruct, VotesStruct
from torchcaps.routing import dynamic_routing, em_routing, plan, why_not
from torchcaps.routing.ops.softmax import SOFTMAX, SoftmaxOptions
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import ConvVotes, DenseVotes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

LIMIT = 2**31
BETAS = {"beta_a": 0.0, "beta_u": 0.0}


def nothing(*shape: int) -> torch.Tensor:
    """A tensor of any size with one number behind it."""
    return torch.zeros(1).expand(shape)


def lazy_zeros(*shape: int) -> torch.Tensor:
    """Zeros that take memory only where they are written: the system has one page for all that are read."""
    return torch.from_numpy(np.zeros(shape, np.float32))


# What cannot be numbered is refused


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_more_children_than_tables_number(routing):
    solve, options = (dynamic_routing, {}) if routing == "dynamic" else (em_routing, BETAS)
    for num_children, refused in ((LIMIT - 1, False), (LIMIT, True)):
        children = Capsules(nothing(1, num_children, 1), nothing(1, num_children))
        votes = DenseVotes(children, nothing(2, 1, 3), sharing="shared")
        reason = why_not("fused", solve, votes, **options)
        assert refused == (reason is not None)
    assert "they take 2,147,483,647 of them, not 2,147,483,648" in reason
    with pytest.raises(ValueError, match="number children with 32 bits.*use backend='auto'"):
        solve(votes, **options, backend="fused")


def test_more_slots_of_factorised_weights_than_tables_number():
    poses = nothing(1, 2**26, 8, 1)
    weight = (nothing(64, 8, 1, 1), nothing(2, 1, 3))
    reason = why_not("fused", dynamic_routing, ConvVotes(poses, weight, sharing="factorised"))
    assert "number children with 32 bits" in reason
    shared = ConvVotes(poses, nothing(2, 1, 3), sharing="shared", kernel_size=64)
    assert why_not("fused", dynamic_routing, shared) is None, "the children themselves can be numbered"


def test_a_parent_position_that_em_cannot_count():
    children = Capsules(nothing(1, 5, 1), nothing(1, 5))
    for num_parents, refused in ((2**14, False), (2**18, True)):
        votes = DenseVotes(children, nothing(num_parents, 1, 2**10), sharing="shared")
        assert refused == (why_not("fused", em_routing, votes, **BETAS) is not None)
        assert why_not("fused", dynamic_routing, votes) is None
    with pytest.raises(ValueError, match="262144 parents of 1024 entries"):
        em_routing(votes, **BETAS, backend="fused")


def test_a_pose_that_em_cannot_count():
    votes = DenseVotes(Capsules(nothing(1, 5, LIMIT), nothing(1, 5)), nothing(2, LIMIT, 1), sharing="shared")
    assert "entries of a pose" in why_not("fused", em_routing, votes, **BETAS)


@pytest.mark.parametrize(
    "sizes",
    [{"slots": LIMIT, "children": LIMIT, "transforms": LIMIT}, {"children": LIMIT}, {"windows": 2}, {"transforms": 4}],
)
@pytest.mark.parametrize("competition", [0, 1, 3])
def test_the_library_itself_refuses_them(sizes, competition):
    """The second wall: nothing is read behind the pointers."""
    room = torch.zeros(5)
    fields = {"examples": 1, "windows": 1, "slots": 5, "children": 5, "parents": 1, "transforms": 5}
    fields |= {"rows": 1, "inner": 1, "outer": 1, "poses": room.data_ptr(), "weight": room.data_ptr()} | sizes
    votes = VotesStruct(**fields)
    options = SoftmaxOptionsStruct(iterations=1, squash_k=1.0, competition=competition)
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        library.call(
            library.load(),
            "torchcaps_softmax_forward_f32",
            ctypes.byref(votes),
            ctypes.byref(options),
            *(ctypes.c_void_p(0),) * 4,
            1,
        )


@pytest.mark.parametrize("batch_size", [1, 40], ids=["few", "many"])
@pytest.mark.parametrize(("field", "value"), [("child", 10_000), ("child", -1), ("transform", 10_000)])
def test_tables_that_point_outside_are_refused(field, value, batch_size):
    votes = lower(ConvVotes(torch.randn(batch_size, 5, 2, 3), torch.randn(2, 3, 4), sharing="shared", kernel_size=3))
    table = getattr(votes.contiguous(), field).clone()
    table.view(-1)[-1] = value
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        SOFTMAX.forward(*votes._replace(**{field: table}), None, None, *SoftmaxOptions(0, 3), None, False)
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        SOFTMAX.forward(
            *votes._replace(**{field: table}), None, None, *SoftmaxOptions(0, 3, competition=1), None, False
        )


# More than 2^31 of everything that is counted with 64 bits


def differentiate(solve, owned: dict, shared: dict, seeds: torch.Tensor):
    """Poses of the parents and the gradients of all leaves."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in (owned | shared).items()}
    poses = solve(**leaves).capsules.poses
    gradients = torch.autograd.grad(poses, list(leaves.values()), seeds)
    return poses.detach(), dict(zip(leaves, gradients))


def assert_close(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.abs().max() > 0
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 1e-4, f"{name}: off by {error:.1e} of its largest entry"


def dense(sharing: str):
    owners = (4096,) if sharing == "full" else ()
    children = {"poses": torch.randn(72, 4096, 2)}
    parents = {"weight": 0.05 * torch.randn(*owners, 64, 2, 128)}
    return children, parents, lambda poses, weight: DenseVotes(poses, weight, sharing=sharing)


def convolution():
    children = {"poses": torch.randn(440, 14, 14, 32, 16), "activations": torch.rand(440, 14, 14, 32)}
    parents = {"weight": torch.eye(4) + 0.3 * torch.randn(3, 3, 32, 32, 4, 4)}

    def describe(poses, activations, weight):
        return ConvVotes(Capsules(poses, activations), weight, pose="matrix", stride=2)

    return children, parents, describe


MANY_VOTES = {
    "dynamic, full": (dynamic_routing, lambda: dense("full"), {}),
    "dynamic, shared": (dynamic_routing, lambda: dense("shared"), {}),
    "em, windows": (em_routing, convolution, BETAS | {"competition": "window"}),
    "em, global": (em_routing, convolution, BETAS | {"competition": "global"}),
    "em, position": (em_routing, convolution, BETAS | {"competition": "position", "damping": 0.1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY_VOTES)
def test_more_votes_than_32_bits_count(name):
    """All at once as in parts; the last example as the reference has it."""
    routing, make, options = MANY_VOTES[name]
    owned, shared, describe = make()
    votes = describe(**owned, **shared)
    assert plan(routing, votes, **options).votes_bytes > 4 * LIMIT

    def solve(backend="fused", **leaves):
        return routing(describe(**leaves), **options, backend=backend)

    batch_size = len(owned["poses"])
    seeds = torch.randn(batch_size, *votes.positions, votes.num_parents, votes.vote_size)
    poses, gradients = differentiate(solve, owned, shared, seeds)
    total = {key: torch.zeros_like(leaf) for key, leaf in shared.items()}
    for start in range(0, batch_size, 40):
        part = slice(start, start + 40)
        expected, wanted = differentiate(solve, {key: x[part] for key, x in owned.items()}, shared, seeds[part])
        assert_close("poses", poses[part], expected)
        for key in owned:
            assert_close(f"gradient of {key}", gradients[key][part], wanted[key])
        for key in shared:
            total[key] += wanted[key]
    for key in shared:
        assert_close(f"gradient of {key}", gradients[key], total[key])
    with torch.no_grad():
        last = {key: leaf[-1:].double() for key, leaf in owned.items()}
        rest = {key: leaf.double() for key, leaf in shared.items()}
        assert_close("the last poses", poses[-1:], solve(**last, **rest, backend="reference").capsules.poses)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dynamic, shared", "dynamic, bias", "em"])
def test_poses_of_more_entries_than_32_bits_count(kind):
    """8.6 GB of poses, three examples of which are not zero: they come out as they do without the others."""
    poses = lazy_zeros(4100, 64, 8192)
    assert poses.numel() > LIMIT
    some = [0, 2000, 4099, 4000]  # the last of these is one of the zeros
    poses[some[:3]] = 0.02 * torch.randn(3, 64, 8192)
    activations, weight = torch.rand(4100, 64), torch.randn(2, 8192, 2)
    bias = None if kind == "dynamic, shared" else torch.randn(2, 2)

    def solve(poses, activations):
        votes = DenseVotes(Capsules(poses, activations), weight, sharing="shared", bias=bias)
        if kind == "em":
            return em_routing(votes, **BETAS, num_iterations=2, backend="fused").capsules.poses
        return dynamic_routing(votes, num_iterations=2, backend="fused").capsules.poses

    assert_close("poses", solve(poses, activations)[some], solve(poses[some], activations[some]))


@pytest.mark.slow
def test_weights_of_more_entries_than_32_bits_count():
    """8.6 GB of weights, of which only three children have any: they alone decide."""
    poses, weight = torch.randn(2, 32800, 64), lazy_zeros(32800, 16, 64, 64)
    assert weight.numel() > LIMIT
    some = [0, 20_000, 32_799]
    weight[some] = 0.1 * torch.randn(3, 16, 64, 64)

    def solve(poses, weight):
        return dynamic_routing(DenseVotes(poses, weight), num_iterations=2, backend="fused")

    seeds = torch.randn(2, 16, 64)
    found, gradients = differentiate(lambda poses: solve(poses, weight), {"poses": poses}, {}, seeds)
    few = {"poses": poses[:, some]}
    expected, wanted = differentiate(lambda poses: solve(poses, weight[some]), few, {}, seeds)
    assert_close("poses", found, expected)
    assert_close("gradient of poses", gradients["poses"][:, some], wanted["poses"])
    gradients["poses"][:, some] = 0
    assert gradients["poses"].eq(0).all()
