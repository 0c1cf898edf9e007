"""The fused kernel of EM routing against the reference in float64: values, gradients, couplings and traces."""

from functools import partial

import pytest
import torch

from support import em_checks
from support.cases import class_case, conv_case, dense_case, randn
from support.em_checks import DESCRIBED, EXTREMES, VALUES
from support.situations import SITUATIONS
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import em_routing, why_not
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.em import EM
from torchcaps.votes import ClassVotes, DenseVotes, as_votes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

solve = partial(em_checks.solve, em_routing)
assert_like_reference = partial(em_checks.assert_like_reference, em_routing)


def matrix_leaves(shape, owners, num_parents, bias=False):
    return with_betas(em_checks.matrix_leaves(shape, owners, num_parents, bias), num_parents)


def conv_matrix(num_parents=5, **options):
    votes, leaves = em_checks.conv_matrix(num_parents=num_parents, **options)
    return votes, with_betas(leaves, num_parents)


def with_betas(leaves, num_parents):
    return leaves | {"beta_a": randn(num_parents), "beta_u": 0.3 * randn(num_parents)}


@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
@pytest.mark.parametrize("detach_couplings", [False, True])
def test_situations(name, activation, detach_couplings):
    case = SITUATIONS[name]()
    leaves = with_betas(case.leaves, as_votes(case.votes()).num_parents)
    # a large eps_var keeps the densities of one or two votes tame, so that nothing drowns in rounding
    options = {"activation": activation, "detach_couplings": detach_couplings, "eps_var": 0.1} | case.options
    logits = options.pop("initial_logits", None)
    if logits is None:
        assert_like_reference(case.describe, leaves, **options)
        logits = randn(*as_votes(case.votes()).coupling_shape)
    assert_like_reference(case.describe, leaves | {"initial_logits": logits}, **options)


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("num_iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_matrix_capsules(competition, num_iterations, bias):
    votes, leaves = conv_matrix(bias=bias)
    options = {"num_iterations": num_iterations, "competition": competition, "eps_var": 1e-3}
    assert_like_reference(votes, leaves, **options)
    assert_like_reference(votes, leaves, **options, detach_couplings=True)


@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
@pytest.mark.parametrize("inverse_temperature", [1 / 16, 0.25, 3.0, [0.1, 1.0, 0.5]])
def test_tempered_e_step(activation, inverse_temperature):
    votes, leaves = conv_matrix()
    for competition in KINDS:
        for detach_couplings in (False, True):
            assert_like_reference(
                *(votes, leaves),
                inverse_temperature=inverse_temperature,
                activation=activation,
                competition=competition,
                detach_couplings=detach_couplings,
                eps_var=1e-3,
            )


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("cost_scale", ["mass", "paper"])
def test_masks(competition, cost_scale):
    mask, window_mask = torch.rand(2, 7, 7, 5) < 0.7, torch.rand(2, 3, 3) < 0.7
    mask[1, 2], window_mask[0] = False, False  # a dead row, and an example without windows
    votes, leaves = conv_matrix(spatial=(7, 7), num_types=5, mask=mask, window_mask=window_mask)
    for detach_couplings in (False, True):
        options = {"cost_scale": cost_scale, "detach_couplings": detach_couplings, "eps_var": 1e-2}
        assert_like_reference(votes, leaves, competition=competition, **options)


@pytest.mark.parametrize("num_children", [1, 7, 63])
@pytest.mark.parametrize("num_parents", [1, 7, 33])
def test_odd_sizes(num_children, num_parents):
    leaves = matrix_leaves((3, num_children), (num_children,), num_parents)

    def votes(poses, activations, weight):
        return DenseVotes(Capsules(poses, activations), weight, pose="matrix")

    assert_like_reference(votes, leaves, eps_var=1e-2)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("num_types", [1, 4, 9])
def test_types(num_types, stride):
    votes, leaves = conv_matrix(num_types=num_types, stride=stride)
    assert_like_reference(votes, leaves, eps_var=1e-2)


@pytest.mark.parametrize("num_parents", [1, 3, 4, 7, 8, 9, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lanes_of_positions(num_parents, dtype):
    """Each lane has a softmax of its own under position competition; padding lanes have none."""
    votes, leaves = conv_matrix(num_parents=num_parents, stride=1, mask=torch.rand(2, 5, 5, 3) < 0.8)
    close = VALUES if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    options = {"competition": "position", "eps_var": 1e-2, "inverse_temperature": 0.25}
    assert_like_reference(votes, leaves, values=close, gradient=tolerance, dtype=dtype, **options)


@pytest.mark.parametrize("damping", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("num_iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
def test_damped_means(damping, num_iterations, activation):
    votes, leaves = conv_matrix(bias=True)
    options = {"damping": damping, "num_iterations": num_iterations, "activation": activation, "eps_var": 1e-3}
    for competition in KINDS:
        for detach_couplings in (False, True):
            assert_like_reference(
                *(votes, leaves), competition=competition, detach_couplings=detach_couplings, **options
            )


def test_damped_means_of_starved_parents():
    """Where the mass is below the least one, the mean is drawn to 0 by both."""
    votes, leaves = conv_matrix()
    leaves["activations"][:, :3] *= 1e-10
    for detach_couplings in (False, True):
        for activation in ("mdl", "entropy"):
            options = {"activation": activation, "detach_couplings": detach_couplings, "eps_var": 0.1}
            assert_like_reference(votes, leaves, damping=0.2, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_damped_means_of_no_votes_are_zero(dtype):
    votes, leaves = conv_matrix()
    leaves = {name: leaf.to(dtype) for name, leaf in leaves.items()} | {
        "activations": torch.zeros(2, 5, 5, 3).to(dtype)
    }
    betas = {name: leaves.pop(name) for name in ("beta_a", "beta_u")}
    assert not em_routing(votes(**leaves), **betas, damping=0.1, backend="fused").capsules.poses.any()


def test_damped_means_in_float32():
    """Far from 0 the damped mean is far from all votes, at first and then less and less."""
    votes, leaves = conv_matrix(spatial=(7, 7), num_types=8, num_parents=16)
    close = {"rtol": 1e-4, "atol": 1e-4}
    options = {"values": close, "gradient": 1e-3, "dtype": torch.float32, "eps_var": 1e-2}
    assert_like_reference(votes, leaves, damping=0.1, **options)
    leaves["poses"] += 10
    assert_like_reference(votes, leaves, damping=0.1, num_iterations=2, inverse_temperature=1 / 16, **options)


def test_class_capsules_with_coordinates():
    leaves = matrix_leaves((2, 4, 4, 6), (6,), 5)

    def votes(poses, activations, weight):
        return ClassVotes(Capsules(poses, activations), weight, pose="matrix")

    assert_like_reference(votes, leaves, eps_var=1e-3)


@pytest.mark.parametrize("competition", KINDS)
def test_float32(competition):
    votes, leaves = conv_matrix(spatial=(7, 7), num_types=8, num_parents=16)
    close = {"rtol": 1e-4, "atol": 1e-4}
    for start in ({}, {"initial_logits": randn(2, 3, 3, 72, 16)}):
        assert_like_reference(
            *(votes, leaves | start),
            values=close, gradient=1e-4, dtype=torch.float32, competition=competition, eps_var=1e-2,
        )  # fmt: skip


@pytest.mark.parametrize("logits", [False, True], ids=["equal shares", "logits"])
@pytest.mark.parametrize("competition", KINDS)
def test_trace(competition, logits):
    votes, leaves = conv_matrix(window_mask=torch.tensor([[[True, False], [True, True]]] * 2))
    betas = {name: leaves.pop(name) for name in ("beta_a", "beta_u")}
    if logits:
        betas["initial_logits"] = randn(*votes(**leaves).coupling_shape)
    fused, reference = (
        em_routing(
            votes(**leaves),
            **betas,
            inverse_temperature=[0.25, 1.0, 0.5],
            competition=competition,
            backend=backend,
            return_trace=True,
        )
        for backend in ("fused", "reference")
    )
    assert len(fused.trace) == 3
    for ours, theirs in zip(fused.trace, reference.trace):
        torch.testing.assert_close(tuple(ours), tuple(theirs), **VALUES)


def test_couplings_are_there_without_gradients():
    votes, leaves = conv_matrix()
    betas = {name: leaves.pop(name) for name in ("beta_a", "beta_u")}
    fused, reference = (em_routing(votes(**leaves), **betas, backend=backend) for backend in ("fused", "reference"))
    torch.testing.assert_close(fused.coupling, reference.coupling, **VALUES)


def test_children_that_no_window_sees_have_no_gradient():
    votes, leaves = conv_matrix(spatial=(6, 6))
    _, gradients = solve(votes, leaves, "fused")
    for name in ("poses", "activations"):
        assert gradients[name][:, 5].eq(0).all()
        assert gradients[name][:, :, 5].eq(0).all()
        assert gradients[name][:, :5, :5].ne(0).any()


@pytest.mark.parametrize("options", [{}, {"competition": "position"}, {"damping": 0.3}], ids=str)
@pytest.mark.parametrize("make", [dense_case, class_case, conv_case])
def test_gradcheck(make, options):
    case = make(batch_size=1, num_parents=2)
    leaves = {name: leaf.requires_grad_() for name, leaf in with_betas(case.leaves, 2).items()}

    def routing(*values):
        values = dict(zip(leaves, values))
        betas = {name: values.pop(name) for name in ("beta_a", "beta_u")}
        fixed = {"eps_var": 0.1, "lambda_schedule": 0.02, "backend": "fused"} | options
        return tuple(em_routing(case.describe(**values), **betas, **fixed).capsules)

    assert torch.autograd.gradcheck(routing, tuple(leaves.values()))


def operator_arguments(votes, **options):
    return em_checks.operator_arguments(em_routing, votes, beta_a=0.0, beta_u=0.0, **options)


@pytest.mark.parametrize("logits", [False, True], ids=["equal shares", "logits"])
def test_operator_is_sound(logits):
    votes, leaves = conv_matrix(batch_size=1, spatial=(3, 3), num_types=1, num_parents=2, bias=True)
    leaves = {name: leaf for name, leaf in leaves.items() if "beta" not in name}
    arguments = [
        x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in operator_arguments(votes(**leaves), initial_logits=randn(1, 1, 1, 9, 2) if logits else None)
    ]
    torch.library.opcheck(EM.forward, arguments)


@pytest.mark.parametrize("bias", [False, True])
def test_compiles_without_a_break(bias):
    votes, leaves = conv_matrix(bias=bias)

    def loss(*values):
        values = dict(zip(leaves, values))
        betas = {name: values.pop(name) for name in ("beta_a", "beta_u")}
        poses, activations = em_routing(votes(**values), **betas, backend="fused").capsules
        return poses.square().sum() + activations.sum()

    values = [leaf.requires_grad_() for leaf in leaves.values()]
    expected = torch.autograd.grad(loss(*values), values)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*values), values)
    torch.testing.assert_close(compiled, expected)


def test_double_backward_is_refused():
    votes, leaves = conv_matrix()
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    betas = {name: leaves.pop(name) for name in ("beta_a", "beta_u")}
    poses = em_routing(votes(**leaves), **betas, backend="fused").capsules.poses
    (gradient,) = torch.autograd.grad(poses.square().sum(), leaves["poses"], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        gradient.sum().backward()


@pytest.mark.parametrize("num_threads", [1, 2, 10])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_threads(num_threads, batch_size):
    votes, leaves = conv_matrix(batch_size=batch_size)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert_like_reference(votes, leaves, eps_var=1e-2)
        assert_like_reference(votes, leaves, eps_var=1e-2, activation="mixing")
        assert_like_reference(votes, leaves, eps_var=1e-2, detach_couplings=True)
        leaves["initial_logits"] = randn(batch_size, 2, 2, 27, 5)
        assert_like_reference(votes, leaves, eps_var=1e-2)
        once, again = (solve(votes, leaves, "fused") for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(once[0].capsules, again[0].capsules))
    assert all(torch.equal(once[1][name], again[1][name]) for name in once[1])


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["mdl", "mixing", "entropy"])
@pytest.mark.parametrize("options", [{}, {"competition": "position"}, {"damping": 0.3}, {"damping": 1 - 1e-9}], ids=str)
def test_extreme_inputs_stay_finite(name, dtype, activation, options):
    votes, leaves = conv_matrix()
    leaves["poses"], leaves["activations"] = EXTREMES[name](leaves["poses"], leaves["activations"])
    leaves = {key: leaf.to(dtype) for key, leaf in leaves.items()}
    result, gradients = solve(votes, leaves, "fused", activation=activation, **options)
    assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))


@pytest.mark.parametrize("name", ["far away", "outlier first"])
def test_float32_variances_do_not_cancel(name):
    """The variance of votes around 1e4, or beside one of 1e6, is that of float64."""
    votes, leaves = conv_matrix(num_types=8, num_parents=4)
    leaves["weight"] = torch.eye(4, dtype=torch.float64).expand_as(leaves["weight"]).clone()
    if name == "far away":
        leaves["poses"] += 1e4
    else:
        leaves["poses"][:, ::2, ::2, 0] = 1e6
        leaves["activations"][:, ::2, ::2, 0] = 1e-10
    leaves = {key: leaf.float().double() for key, leaf in leaves.items()}
    leaves = {key: leaf for key, leaf in leaves.items() if "beta" not in key}
    variances = []
    for dtype in (torch.float32, torch.float64):
        description = votes(**{key: leaf.to(dtype) for key, leaf in leaves.items()})
        state = EM.forward(*operator_arguments(description))[-1]
        variances.append(state.movedim(-1, -2).flatten(3, 4)[..., :4, 16:32].double())
    torch.testing.assert_close(variances[0], variances[1], rtol=2e-3, atol=0)


def test_memory_of_masked_children_is_never_read():
    mask = torch.rand(2, 5, 5, 3) < 0.6
    votes, leaves = conv_matrix(mask=mask)
    leaves["poses"][~mask], leaves["activations"][~mask] = float("nan"), float("nan")
    slots = votes(**{name: leaf for name, leaf in leaves.items() if "beta" not in name}).slot_mask()
    logits = torch.where(slots.unsqueeze(-1), randn(*slots.shape, 5), torch.nan)
    for start in ({}, {"initial_logits": logits}):
        result, gradients = solve(votes, leaves | start, "fused")
        assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))
        assert gradients["poses"][~mask].eq(0).all()
        assert gradients["activations"][~mask].eq(0).all()
    assert gradients["initial_logits"][~slots].eq(0).all()


def test_refusals_explain_themselves():
    votes, leaves = conv_matrix()
    betas = {name: leaves.pop(name) for name in ("beta_a", "beta_u")}
    description = votes(**leaves)
    assert why_not("fused", em_routing, description, **betas) is None
    assert "votes exist already" in why_not(
        "fused", em_routing, randn(2, 3, 5, 4), torch.ones(2, 3).double(), beta_a=0.0, beta_u=0.0
    )
