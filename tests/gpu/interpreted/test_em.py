"""EM routing of GPUs against the reference in float64: every kind of votes, every option."""

import pytest
import torch

from support.cases import class_case, dense_case, rand
from support.gpu_checks import CASES, assert_right, conv1d
from support.situations import with_logits
from torchcaps.routing import em_routing

SOFT = {"num_iterations": 2, "inverse_temperature": (0.5, 0.25), "eps_var": 0.05}


def betas(num_parents):
    return {"beta_a": rand(num_parents), "beta_u": -0.2 * rand(num_parents)}


def parents_of(case):
    return case.leaves["weight"].shape[-3]


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_votes(name):
    case = CASES[name]()
    options = SOFT | ({"num_iterations": 3, "inverse_temperature": 0.3} if "conv1d" in name else {})
    assert_right(em_routing, case, **betas(parents_of(case)), **options)


@pytest.mark.parametrize("activation", ["mixing", "entropy"])
@pytest.mark.parametrize("kind", ["window", "global", "position"])
def test_activations(activation, kind):
    case = conv1d(mask=True, window_mask=True).given(competition=kind)
    assert_right(em_routing, case, **betas(2), **SOFT, activation=activation)


@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.3},
        {"damping": 0.3, "activation": "mixing", "num_iterations": 3, "inverse_temperature": 0.3},
        {"detach_couplings": True},
        {"detach_couplings": True, "damping": 0.3},
        {"cost_scale": "paper"},
        {"num_iterations": 1, "inverse_temperature": 1.0, "detach_couplings": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("logits", [False, True], ids=["", "logits"])
def test_options(options, logits):
    case = conv1d(mask=True)
    assert_right(em_routing, with_logits(case) if logits else case, **betas(2), **(SOFT | options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [lambda: dense_case(num_children=3, mask=True), conv1d], ids=["dense", "conv"])
def test_smaller_types(make, dtype):
    case = make()
    assert_right(em_routing, case, dtype, **betas(parents_of(case)), **SOFT)


@pytest.mark.parametrize("kind", ["window", "global", "position"])
def test_traces(kind):
    case = conv1d(mask=True, window_mask=True).given(competition=kind)
    learned = betas(2)
    ours, theirs = (
        em_routing(case.votes(), **learned, **SOFT, **case.options, return_trace=True, backend=backend)
        for backend in ("triton", "reference")
    )
    assert len(ours.trace) == len(theirs.trace)
    for step, wanted in zip(ours.trace, theirs.trace, strict=True):
        for value, expected in zip(step, wanted, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-10, 1e3])
def test_everything_is_finite(scale):
    case = class_case(spatial=(1, 2), mask=True)
    leaves = {name: (scale * leaf).float().requires_grad_() for name, leaf in case.leaves.items()}
    result = em_routing(case.votes(**leaves), beta_a=0.1, beta_u=0.2, backend="triton", num_iterations=2)
    gradients = torch.autograd.grad([x.sum() for x in result.capsules], list(leaves.values()))
    assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients))
