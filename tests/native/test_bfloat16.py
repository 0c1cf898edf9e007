"""Votes as products of bfloat16: where torch's setting allows it, no gradient is asked for, and the processor can."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from support.cases import Case, conv_case, dense_case, randn, random_mask
from support.situations import amended, partially
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import dynamic_routing, entropy_routing, kmeans_routing
from torchcaps.votes import DenseVotes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

CPU = Path("/proc/cpuinfo")
CAN = (
    library.why_not() is None
    and library.instruction_set() == "avx512"
    and CPU.exists()
    and "avx512_bf16" in CPU.read_text()
)
needs_bfloat16 = pytest.mark.skipif(not CAN, reason="this processor has no products of bfloat16")
ROUTINGS = {
    "dynamic": dynamic_routing,
    "kmeans dot": partial(kmeans_routing, metric="dot"),
    "kmeans euclidean": partial(kmeans_routing, metric="euclidean"),
    "entropy": entropy_routing,
}


def sized_case(rows=1, inner=8, outer=16, batch_size=40, num_children=19):
    """Dense votes of any size, two blocks of slots and a rest; some children are masked."""
    leaves = {
        "poses": randn(batch_size, num_children, rows * inner),
        "weight": randn(num_children, 5, inner, outer) / inner,
    }
    mask, pose = random_mask(batch_size, num_children), "vector" if rows == 1 else "matrix"

    def describe(poses, weight):
        return DenseVotes(Capsules(poses, poses[..., 0].abs()), weight, mask=mask, pose=pose)

    return Case(leaves, describe, form=lambda arrays: NotImplemented)


def smaller(case):
    """Small votes: K-Means of large ones multiplies every rounding."""
    return replace(case, leaves={name: 0.3 * leaf for name, leaf in case.leaves.items()})


CASES = {
    **{
        f"{rows} x {inner} to {rows} x {outer}": partial(sized_case, rows, inner, outer)
        for rows, inner, outer in [
            (1, 8, 16), (1, 16, 16), (1, 8, 8), (4, 4, 4), (3, 3, 3), (1, 7, 5), (1, 1, 3), (1, 5, 33),
            (1, 32, 48), (1, 64, 64),  # of which fewer slots are rounded at once
        ]
    },
    "one tile of one register": partial(sized_case, batch_size=13),
    "bias": lambda: smaller(dense_case(batch_size=40, mask=True)),
    "some parents": lambda: partially(smaller(dense_case(batch_size=40))),
    "conv": lambda: conv_case(batch_size=9, mask=True, window_mask=True),
    "conv, shared matrices": lambda: conv_case(batch_size=9, pose="matrix", sharing="shared"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def restore_settings():
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)


def single(case):
    return case.votes(**{name: leaf.float() for name, leaf in case.leaves.items()})


def rounded(case):
    """Poses and weights rounded to bfloat16, in float64."""
    return case.votes(**{name: case.leaves[name].float().bfloat16().double() for name in ("poses", "weight")})


def route(votes, precision, routing=dynamic_routing, backend="fused", **options):
    torch.set_float32_matmul_precision(precision)
    return routing(votes, backend=backend, **options).capsules.poses


@needs_bfloat16
@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
def test_nothing_but_poses_and_weights_is_rounded(routing, name):
    case = CASES[name]()
    found = route(single(case), "medium", routing, **case.options)
    expected = route(rounded(case), "highest", routing, "reference", **case.options)
    assert (found - expected).abs().max() <= 5e-5 * expected.abs().max()
    assert not torch.equal(found, route(single(case), "highest", routing, **case.options))


@needs_bfloat16
@torch.no_grad()
def test_error_of_a_sum_is_the_rounding_of_its_products():
    case = sized_case()
    votes, poses, weight = single(case), *(case.leaves[name].abs() for name in ("poses", "weight"))
    error = route(votes, "medium", num_iterations=1) - route(case.votes(), "highest", num_iterations=1)
    products = torch.einsum("bik,ijkd->bjd", poses, weight) / 5  # rounded twice, by 2^-9 at most
    assert (error.norm(dim=-1) <= 2**-8 * products.norm(dim=-1)).all()  # the squash makes no distance larger


@needs_bfloat16
@torch.no_grad()
def test_activations_come_before_the_rounding_of_the_first_sums():
    case = amended(dense_case(batch_size=40))
    poses, activations = (case.leaves[name].float() for name in ("poses", "activations"))
    together = (poses * activations.unsqueeze(-1)).bfloat16().double()
    weight, bias = case.leaves["weight"].float().bfloat16().double(), case.leaves["bias"]
    sums = torch.einsum("bik,ijkd->bjd", together, weight) + torch.einsum("bi,ijd->bjd", activations.double(), bias)
    found = route(single(case), "medium", num_iterations=1, amend=True)
    squared = (sums / 3).square().sum(-1, keepdim=True)
    expected = sums / 3 * squared.sqrt() / (1 + squared)
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-6)
    three = route(single(case), "medium", amend=True)
    assert torch.allclose(three.double(), route(case.votes(), "highest", backend="reference", amend=True), atol=0.02)


@torch.no_grad()
def test_same_bits_with_any_number_of_threads():
    votes, found = single(sized_case(batch_size=150)), []
    for threads in (1, 2, 5, 5):
        torch.set_num_threads(threads)
        found.append(route(votes, "medium"))
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_only_medium_without_gradients_rounds(precision, grad):
    votes = single(sized_case())
    votes.weight.requires_grad_(grad)
    same = torch.equal(route(votes, "highest"), route(votes, precision))
    assert same == (precision == "high" or grad or not CAN)


@torch.no_grad()
def test_what_is_routed_otherwise_is_not_rounded():
    others = {
        "few samples": single(sized_case(batch_size=8)),
        "float64": sized_case().votes(),
        "shared": single(dense_case(batch_size=130, num_children=9, sharing="shared", bias=False)),
    }
    for name, votes in others.items():
        assert torch.equal(route(votes, "highest"), route(votes, "medium")), name
    votes, logits = single(sized_case()), torch.zeros(40, 19, 5)  # with logits of its own the lanes are parents
    assert torch.equal(*(route(votes, precision, initial_logits=logits) for precision in ("highest", "medium")))


@torch.no_grad()
def test_couplings_are_those_of_float32():
    votes, found = single(sized_case()), []
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        found.append(dynamic_routing(votes, backend="fused").coupling)
    assert torch.equal(*found)


def test_gradients_are_those_of_float32():
    found = []
    for precision in ("highest", "medium"):
        torch.manual_seed(0)
        votes = single(sized_case())
        votes.weight.requires_grad_()
        found.append(torch.autograd.grad(route(votes, precision).sum(), votes.weight)[0])
    assert torch.equal(*found)


@needs_bfloat16
@pytest.mark.skipif(not library.library_path("avx2").exists(), reason="no build for AVX2")
def test_another_build_ignores_it():
    program = (
        "import torch; from torchcaps.routing import dynamic_routing; from torchcaps.votes import DenseVotes\n"
        "votes = DenseVotes(torch.randn(40, 19, 8), torch.randn(19, 5, 8, 16))\n"
        "one = dynamic_routing(votes, backend='fused').capsules.poses\n"
        "torch.set_float32_matmul_precision('medium')\n"
        "print(torch.equal(one, dynamic_routing(votes, backend='fused').capsules.poses))"
    )
    for build, same in {"avx2": "True", "avx512": "False"}.items():
        environment = os.environ | {"TORCHCAPS_ISA": build}
        finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert finished.stdout.strip() == same, finished.stderr
