"""Variational, Heinsen and self-routing on the kernel of the EM family, against the reference in float64."""

from functools import partial

import pytest
import torch

from support.cases import class_case, conv_case, dense_case, randn
from support.em_checks import (
    DESCRIBED,
    EXTREMES,
    VALUES,
    assert_like_reference,
    conv_matrix,
    matrix_leaves,
    operator_arguments,
    solve,
    split,
)
from support.situations import SITUATIONS
from torchcaps.capsules import Capsules
from torchcaps.native import library
from torchcaps.routing import heinsen_routing, plan, self_routing, vb_routing, why_not
from torchcaps.routing.competition import KINDS
from torchcaps.routing.ops.em import EM
from torchcaps.votes import ClassVotes, DenseVotes, as_votes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

# a large eps_var keeps the densities of one or two votes tame, so that nothing drowns in rounding
MEMBERS = {
    "vb": vb_routing,
    "heinsen": partial(heinsen_routing, eps_var=0.1),
    "self": self_routing,
}
ITERATING = ["vb", "heinsen"]
GRADIENT = {"vb": 1e-8, "heinsen": 1e-9, "self": 1e-9}  # the derivative of psi that torch has is good to 5e-10
SHAPES = {"per parent": lambda votes: (), "per child": lambda votes: (votes.num_slots,)}


def learned(name, votes, shape="per child"):
    """What the call of a member is given, for votes like these."""
    votes = as_votes(votes)
    if name == "self":
        return {"initial_logits": randn(*votes.coupling_shape)}
    if name == "vb":
        return {"beta_a": randn(votes.num_parents), "beta_u": randn(votes.num_parents)}
    owners = SHAPES[shape](votes)
    return {"beta_use": 0.3 * randn(*owners, votes.num_parents), "beta_ignore": 0.3 * randn(votes.num_parents)}


def posed(name, make_votes, leaves, **options):
    return MEMBERS[name], make_votes, leaves | learned(name, make_votes(**leaves), **options)


def agrees(name, make_votes, leaves, **options):
    options = {"gradient": GRADIENT[name]} | options
    assert_like_reference(*posed(name, make_votes, leaves), **options)


@pytest.mark.parametrize("situation", DESCRIBED)
@pytest.mark.parametrize("name", MEMBERS)
def test_situations(situation, name):
    case = SITUATIONS[situation]()
    options = dict(case.options)
    logits = options.pop("initial_logits", randn(*as_votes(case.votes()).coupling_shape))
    for detach_couplings in (False, True) if name in ITERATING else (None,):
        if detach_couplings is not None:
            options["detach_couplings"] = detach_couplings
        for start in ({}, {"initial_logits": logits}):
            routing, votes, leaves = posed(name, case.describe, case.leaves)
            leaves.pop("initial_logits", None)
            assert_like_reference(routing, votes, leaves | start, gradient=GRADIENT[name], **options)


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("num_iterations", [1, 2, 5])
@pytest.mark.parametrize("name", ITERATING)
def test_matrix_capsules(name, competition, num_iterations):
    for detach_couplings in (False, True):
        options = {"competition": competition, "num_iterations": num_iterations}
        agrees(name, *conv_matrix(bias=True), detach_couplings=detach_couplings, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("detach_couplings", [False, True])
def test_what_a_child_is_worth(shape, detach_couplings):
    """One number for all children, or one for each; children without logits at the start, and with."""
    votes, leaves = conv_matrix()
    for start in ({}, {"initial_logits": randn(*votes(**leaves).coupling_shape)}):
        routing, _, given = posed("heinsen", votes, leaves, shape=shape)
        assert_like_reference(routing, votes, given | start, detach_couplings=detach_couplings)


@pytest.mark.parametrize(("use", "ignore"), [(3, 27), (27, 3), (1, 9), (9, 1)])
def test_worth_of_child_types(use, ignore):
    votes, leaves = conv_matrix()
    betas = {"beta_use": 0.3 * randn(use, 5), "beta_ignore": 0.3 * randn(ignore, 5)}
    assert_like_reference(MEMBERS["heinsen"], votes, leaves | betas)


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("name", MEMBERS)
def test_masks(name, competition):
    mask, window_mask = torch.rand(2, 7, 7, 5) < 0.7, torch.rand(2, 3, 3) < 0.7
    mask[1, 2], window_mask[0] = False, False  # a dead row, and an example without windows
    agrees(name, *conv_matrix(spatial=(7, 7), num_types=5, mask=mask, window_mask=window_mask), competition=competition)


@pytest.mark.parametrize("num_children", [1, 7, 63])
@pytest.mark.parametrize("num_parents", [1, 7, 33])
@pytest.mark.parametrize("name", MEMBERS)
def test_odd_sizes(name, num_children, num_parents):
    def votes(poses, activations, weight):
        return DenseVotes(Capsules(poses, activations), weight, pose="matrix")

    agrees(name, votes, matrix_leaves((3, num_children), (num_children,), num_parents))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ITERATING)
def test_vote_sizes(name, size):
    """The sums of psi have a term for each entry."""
    leaves = {"poses": randn(2, 5, 3), "activations": torch.rand(2, 5).double(), "weight": randn(5, 3, 3, size)}

    def votes(poses, activations, weight):
        return DenseVotes(Capsules(poses, activations), weight)

    agrees(name, votes, leaves)


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize(
    "prior",
    [{"alpha0": 0.2, "kappa0": 5.0, "psi0": 3.0, "nu0": 40.0}, {"alpha0": 2.0, "kappa0": 0.1, "psi0": 0.1}],
    ids=["strong", "weak"],
)
def test_priors(prior, competition):
    agrees("vb", *conv_matrix(), competition=competition, **prior)


def test_degrees_of_freedom_just_above_the_least():
    votes, leaves = conv_matrix()
    leaves["activations"] *= 1e-3
    routing, _, given = posed("vb", votes, leaves)
    assert_like_reference(routing, votes, given, nu0=15.01, gradient=1e-8)


@pytest.mark.parametrize("num_parents", [1, 4, 7, 8, 9])
@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("name", MEMBERS)
def test_lanes_in_float32(name, competition, num_parents):
    votes, leaves = conv_matrix(num_parents=num_parents, stride=1, mask=torch.rand(2, 5, 5, 3) < 0.8)
    close = {"values": {"rtol": 1e-4, "atol": 1e-4}, "gradient": 3e-4, "dtype": torch.float32}
    soft = {"psi0": 10.0} if name == "vb" else {}  # sharp couplings would magnify the rounding
    agrees(name, votes, leaves, competition=competition, **close, **soft)


@pytest.mark.parametrize("name", MEMBERS)
def test_class_capsules_with_coordinates(name):
    def votes(poses, activations, weight):
        return ClassVotes(Capsules(poses, activations), weight, pose="matrix")

    agrees(name, votes, matrix_leaves((2, 4, 4, 6), (6,), 5))


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("name", MEMBERS)
def test_trace(name, competition):
    votes, leaves = conv_matrix(window_mask=torch.tensor([[[True, False], [True, True]]] * 2))
    given = learned(name, votes(**leaves)) | {"competition": competition, "return_trace": True}
    fused, reference = (MEMBERS[name](votes(**leaves), **given, backend=kind) for kind in ("fused", "reference"))
    assert len(fused.trace) == len(reference.trace)
    for ours, theirs in zip(fused.trace, reference.trace):
        torch.testing.assert_close(tuple(ours), tuple(theirs), **VALUES)


@pytest.mark.parametrize("make", [dense_case, class_case, conv_case])
@pytest.mark.parametrize("name", MEMBERS)
def test_gradcheck(name, make):
    case = make(batch_size=1, num_parents=2)
    routing, _, leaves = posed(name, case.describe, case.leaves)
    leaves = {key: leaf.requires_grad_() for key, leaf in leaves.items()}

    def solved(*values):
        of_votes, of_call = split(dict(zip(leaves, values)))
        return tuple(routing(case.describe(**of_votes), **of_call, backend="fused").capsules)

    assert torch.autograd.gradcheck(solved, tuple(leaves.values()), fast_mode=True)


@pytest.mark.parametrize("name", MEMBERS)
def test_operator_is_sound(name):
    votes, leaves = conv_matrix(batch_size=1, spatial=(3, 3), num_types=1, num_parents=2, bias=True)
    description = votes(**leaves)
    arguments = [
        x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in operator_arguments(MEMBERS[name], description, **learned(name, description))
    ]
    torch.library.opcheck(EM.forward, arguments)


@pytest.mark.parametrize("name", ITERATING)
def test_compiles_without_a_break(name):
    votes, leaves = conv_matrix()
    routing, _, leaves = posed(name, votes, leaves)

    def loss(*values):
        of_votes, of_call = split(dict(zip(leaves, values)))
        poses, activations = routing(votes(**of_votes), **of_call, backend="fused").capsules
        return poses.square().sum() + activations.sum()

    values = [leaf.requires_grad_() for leaf in leaves.values()]
    expected = torch.autograd.grad(loss(*values), values)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*values), values)
    torch.testing.assert_close(compiled, expected)


@pytest.mark.parametrize("num_threads", [1, 2, 10])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", MEMBERS)
def test_threads(name, num_threads, batch_size):
    votes, leaves = conv_matrix(batch_size=batch_size)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for competition in KINDS:
            agrees(name, votes, leaves, competition=competition)
        given = posed(name, votes, leaves)
        once, again = (solve(*given, "fused") for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(once[0].capsules, again[0].capsules))
    assert all(torch.equal(once[1][key], again[1][key]) for key in once[1])


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MEMBERS)
def test_extreme_inputs_stay_finite(extreme, dtype, name):
    for competition in KINDS:
        votes, leaves = conv_matrix()
        leaves["poses"], leaves["activations"] = EXTREMES[extreme](leaves["poses"], leaves["activations"])
        routing, _, leaves = posed(name, votes, leaves)
        leaves = {key: leaf.to(dtype) for key, leaf in leaves.items()}
        result, gradients = solve(routing, votes, leaves, "fused", competition=competition)
        assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))


@pytest.mark.parametrize("name", MEMBERS)
def test_parents_that_hardly_anybody_votes_for(name):
    """Masses from 1e-12 to 1: where EM divides by a constant VB has its prior, and both have gradients."""
    votes, leaves = conv_matrix()
    leaves["activations"] *= 10.0 ** torch.linspace(-12, 0, leaves["activations"].numel()).view_as(
        leaves["activations"]
    )
    agrees(name, votes, leaves)


@pytest.mark.parametrize("name", MEMBERS)
def test_memory_of_masked_children_is_never_read(name):
    mask = torch.rand(2, 5, 5, 3) < 0.6
    votes, leaves = conv_matrix(mask=mask)
    routing, _, leaves = posed(name, votes, leaves)
    slots = votes(**split(leaves)[0]).slot_mask()
    leaves["poses"][~mask], leaves["activations"][~mask] = float("nan"), float("nan")
    leaves["initial_logits"] = torch.where(slots.unsqueeze(-1), randn(*slots.shape, 5), torch.nan)
    result, gradients = solve(routing, votes, leaves, "fused")
    assert all(x.isfinite().all() for x in (*result.capsules, result.coupling, *gradients.values()))
    assert gradients["poses"][~mask].eq(0).all()
    assert gradients["activations"][~mask].eq(0).all()


@pytest.mark.parametrize("name", MEMBERS)
def test_auto_takes_the_kernel(name):
    votes, leaves = conv_matrix()
    for competition in KINDS:
        given = learned(name, votes(**leaves)) | {"competition": competition}
        assert plan(MEMBERS[name], votes(**leaves), **given).chosen == "fused"
    plain, activations = randn(2, 3, 5, 4), torch.ones(2, 3).double()
    given = learned(name, plain)
    assert "votes exist already" in why_not("fused", MEMBERS[name], plain, activations, **given)
