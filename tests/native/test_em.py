"""What the EM kernels must withstand: other builds, poisoned memory, strides, forks, misuse."""

import ctypes
import multiprocessing
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from support.cases import conv_case, randn
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.native.struct import EmOptionsStruct
from torchcaps.routing import em_routing, heinsen_routing, self_routing, vb_routing
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.em import EM, EmKernelOptions, EmMapping
from torchcaps.routing.ops.votes import lower
from torchcaps.votes import ConvVotes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

TESTS = Path(__file__).parents[1]
BETAS = {"beta_a": 0.3, "beta_u": -0.2}
MEMBERS = {
    "em": partial(em_routing, **BETAS),
    "em damped": partial(em_routing, damping=0.2, **BETAS),
    "vb": partial(vb_routing, **BETAS),
    "heinsen": partial(heinsen_routing, beta_use=0.3, beta_ignore=0.2),
    "self": self_routing,
}
OPTIONS = EmKernelOptions(
    mapping=EmMapping.MDL.value,
    competition=1,
    sharpness=[0.05, 0.1, 0.15],
    inverse_temperatures=[1.0, 1.0, 1.0],
    eps_var=1e-2,
    scale_by_mass=True,
)


@pytest.fixture
def empty_is_nan():
    """torch.empty comes filled with NaN, so that an entry no kernel writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("instruction_set", library.INSTRUCTION_SETS)
def test_other_builds_and_poisoned_scratch(instruction_set):
    if not library.library_path(instruction_set).exists():
        pytest.skip(f"no {instruction_set} build here")
    environment = os.environ | {"TORCHCAPS_ISA": instruction_set, "TORCHCAPS_POISON": "1"}
    chosen = "situations or matrix_capsules or masks or odd_sizes or float32 or threads or trace or damped or lanes"
    chosen = f"({chosen}) and not (ops and (situations or odd_sizes or threads or trace))"  # EM itself has these
    files = [TESTS / "routing" / "em" / "test_fused.py", TESTS / "routing" / "ops" / "test_em.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen]
    run = subprocess.run(
        [*command, *map(str, files)],
        env=environment, capture_output=True, text=True, cwd=TESTS.parent,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.usefixtures("empty_is_nan")
@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("routing", MEMBERS.values(), ids=MEMBERS)
def test_every_result_is_written(competition, routing):
    case = conv_case(mask=True, window_mask=True)
    leaves = {name: leaf.requires_grad_() for name, leaf in case.leaves.items()}
    result = routing(case.describe(**leaves), competition=competition, backend="fused")
    gradients = torch.autograd.grad([x.sum() for x in result.capsules], list(leaves.values()))
    assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients))


def test_strided_inputs():
    poses, activations = randn(6, 6, 3, 2, 16).permute(3, 0, 1, 2, 4), torch.rand(2, 3, 6, 6).double().movedim(1, 3)
    weight = randn(3, 3, 3, 4, 4, 5).movedim(5, 3)
    votes = ConvVotes(Capsules(poses, activations), weight, stride=2, pose="matrix")
    fused, reference = (em_routing(votes, **BETAS, backend=backend).capsules for backend in ("fused", "reference"))
    torch.testing.assert_close(fused, reference, rtol=1e-9, atol=1e-10)


def _route_in_child(poses, results):
    weight = torch.eye(4).expand(3, 3, 2, 4, 4, 4).double()
    votes = ConvVotes(Capsules(poses, torch.ones(poses.shape[:-1]).double()), weight, pose="matrix")
    results.put(em_routing(votes, **BETAS, backend="fused").capsules.poses.sum().item())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_hang():
    poses = randn(2, 4, 4, 2, 16)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    _route_in_child(poses, results)
    child = context.Process(target=_route_in_child, args=(poses, results))
    child.start()
    child.join(timeout=60)
    hung = child.is_alive()
    if hung:
        child.kill()
    assert not hung
    assert child.exitcode == 0
    assert results.get() == pytest.approx(results.get(), rel=1e-12)


def kernel_votes():
    return lower(conv_case().votes())


@pytest.mark.parametrize(
    ("field", "value"),
    [("child", 10_000), ("child", -1), ("transform", 10_000), ("transform", -1)],
)
def test_tables_that_point_outside_are_refused(field, value):
    votes = kernel_votes().contiguous()
    if getattr(votes, field) is None:
        votes = votes._replace(transform=torch.arange(votes.num_slots, dtype=torch.int32))
    table = getattr(votes, field).clone()
    table.view(-1)[-1] = value
    betas = torch.zeros(votes.num_parents, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        EM.forward(*votes._replace(**{field: table}), betas, betas, None, None, None, *OPTIONS, False)


def test_options_struct_has_the_size_of_the_kernel_side():
    assert ctypes.sizeof(EmOptionsStruct) == library.load().torchcaps_em_options_bytes()


def test_scratch_can_be_released_between_calls():
    votes = conv_case().votes()
    before = em_routing(votes, **BETAS, backend="fused").capsules.poses
    library.release_scratch()
    assert torch.equal(before, em_routing(votes, **BETAS, backend="fused").capsules.poses)


@pytest.mark.parametrize(
    "bad",
    [
        *({"damping": value} for value in (1.0, -0.1, float("nan"))),
        *({"competition": value} for value in (3, -1)),
        *({"mapping": value} for value in (6, -1)),
        {"mapping": EmMapping.MASS.value},  # of three iterations
        {"mapping": EmMapping.HEINSEN.value},  # without worth and threshold
        *(
            {"mapping": EmMapping.VB.value, "prior": prior}
            for prior in ([], [0, 1, 1, 20], [1, 1, 1, 3], [1, 1, -1, 20])
        ),
    ],
    ids=str,
)
def test_options_outside_their_range_are_refused(bad):
    votes = kernel_votes()
    betas = torch.zeros(votes.num_parents, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="arguments it does not take"):
        EM.forward(*votes, betas, betas, None, None, None, *OPTIONS._replace(**bad), False)
