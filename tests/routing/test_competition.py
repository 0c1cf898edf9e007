"""Couplings of logits: shares that do not depend on how large the logits are, and who competes with whom."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from support.algorithms import ALL, BETAS, LEAKY, NO_SHARES, competitors, conv_votes, describe, route
from support.cases import conv_case, randn
from torchcaps.capsules import Capsules
from torchcaps.routing import em_routing
from torchcaps.routing.competition import KINDS, Competition
from torchcaps.votes import ConvVotes

every_routing = pytest.mark.parametrize("name", list(ALL))
on_each_backend = pytest.mark.parametrize("backend", ["reference", "auto"])  # "auto" takes EM's kernel if it is built
STEADY = {"lambda_schedule": 0.01, "cost_scale": "paper"}  # EM: nothing depends on the iteration or on other types


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [-1e6, 1e6])
def test_large_logits_cost_no_digits(kind, shift):
    votes = conv_case().votes()
    competition = Competition(votes, kind)
    logits = torch.randint(-8, 9, votes.materialise().shape[:-1]).float() / 4  # 1e6 can be added without rounding
    assert_close(competition.softmax(logits + shift), competition.softmax(logits))


@pytest.mark.parametrize("kind", KINDS)
def test_a_leak_takes_what_others_do_not_want(kind):
    votes = conv_case().votes()
    competition = Competition(votes, kind, leaky=True)
    logits = torch.zeros(votes.materialise().shape[:-1])
    assert (competition.softmax(logits - 1e6) == 0).all()
    assert_close(competition.softmax(logits + 1e6), Competition(votes, kind).softmax(logits))


def test_each_type_has_a_leak_of_its_own():
    """A child under n windows: 1 / (n + 1) for each type from equal logits; the first couplings are those of types."""
    votes = conv_votes(spatial=(7,), kernel=(3,), stride=(2,), num_types=1, num_parents=2)
    times = torch.tensor([1, 1, 2, 1, 2, 1, 1]).double()
    competition = Competition(votes, "position", leaky=True)
    coupling = competition.softmax(torch.zeros(votes.coupling_shape, dtype=torch.float64))
    expected = 1 / (times[votes.windows.children()] + 1)
    assert_close(coupling, expected[..., None].expand(coupling.shape))
    assert_close(competition.first(None), torch.full_like(coupling, 1 / 3))


def test_types_that_take_no_part_have_no_share():
    votes, partial = conv_votes(num_parents=3), torch.tensor([True, False, True])
    for kind in KINDS:
        competition = Competition(votes, kind, partial=partial)
        for coupling in (competition.first(None), competition.softmax(randn(*votes.coupling_shape))):
            assert not coupling[..., 1].any()
        rows = competitors(coupling, votes, kind, 0.0).sum(-1)
        shares = rows.unflatten(1, (-1, 3))[..., [0, 2]] if kind == "position" else rows
        assert_close(shares[shares > 0], torch.ones_like(shares[shares > 0]))
    assert_close(Competition(votes, "position", partial=partial).first(None)[..., 0].unique().item(), 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_assignments_are_the_limit_of_shares(kind):
    votes = conv_votes(mask=torch.rand(2, 6, 4, 2) < 0.8, window_mask=torch.rand(2, 2, 3) < 0.8)
    competition, logits = Competition(votes, kind), randn(*votes.coupling_shape)
    assert_close(competition.assign(logits), competition.softmax(1e6 * logits))


def test_equal_positions_go_to_the_first():
    """Rows 2 and 4 of seven are seen twice, by their own window last."""
    votes = conv_votes(spatial=(7,), kernel=(3,), stride=(2,), num_types=1, num_parents=2)
    coupling = Competition(votes, "position").assign(torch.zeros(votes.coupling_shape))
    expected = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    assert torch.equal(coupling, expected[None, :, :, None].expand(coupling.shape))


@pytest.mark.parametrize("kind", KINDS)
def test_log_partition_is_that_of_the_rows(kind):
    votes = conv_votes(mask=torch.rand(2, 6, 4, 2) < 0.8)
    logits = randn(*votes.coupling_shape)
    masked = logits.masked_fill(~votes.slot_mask().unsqueeze(-1), -torch.inf)
    totals = competitors(masked, votes, kind, -torch.inf).logsumexp(-1)
    expected = torch.where(totals.isinf(), 0.0, totals).sum(1)
    assert_close(Competition(votes, kind).log_partition(logits), expected)


# Position competition: types do not know of each other


@on_each_backend
@pytest.mark.parametrize("name", [name for name in ALL if name not in NO_SHARES])
def test_one_window_gets_all_of_every_child(name, backend):
    """Nobody competes with the only position, so that every coupling is 1 from the first update on."""
    votes = conv_votes(spatial=(3, 2), num_parents=3).given(activations=None, mask=None)
    trace = route(name, votes, competition="position", backend=backend, return_trace=True).trace
    whole = votes.slots(votes.activations).unsqueeze(-1) if name.endswith("amended") else 1.0
    is_leaky = any(name.startswith(leaky) for leaky in LEAKY)
    assert_close(trace[0].coupling, torch.ones(votes.coupling_shape).double() * whole / (3 + is_leaky))
    for step in () if is_leaky else trace[1:]:
        assert_close(step.coupling, torch.ones(votes.coupling_shape).double() * whole)


@on_each_backend
def test_one_window_changes_no_mean(backend):
    """Weights that are all equal have the same mean, however often they are taken."""
    votes = conv_votes(spatial=(3, 2), num_parents=3)
    one, five = (
        em_routing(
            votes, **BETAS, activation="entropy", lambda_schedule=0.01, competition="position",
            num_iterations=num_iterations, backend=backend,
        )
        for num_iterations in (1, 5)
    )  # fmt: skip
    assert_close(one.capsules, five.capsules)


@on_each_backend
@every_routing
def test_windows_that_do_not_overlap_do_not_compete(name, backend):
    votes = conv_votes(spatial=(6, 4), kernel=(3, 2), stride=(3, 2)).given(activations=None, mask=None)
    result = route(name, votes, competition="position", backend=backend)
    if name in ("uniform", "self") or any(name.startswith(leaky) for leaky in LEAKY):
        return  # without an update there are the first couplings
    if name == "self_attention":
        return  # a bias comes on top
    whole = votes.slots(votes.activations).unsqueeze(-1) if name.endswith("amended") else 1.0
    assert_close(result.coupling, torch.ones(votes.coupling_shape).double() * whole)


@every_routing
def test_a_type_is_routed_as_if_it_were_alone(name):
    """From given logits each type has the couplings and poses of a layer that has no other type."""
    if "mixing" in name:
        pytest.skip("mixing shares the mass among all types")
    children = Capsules(randn(2, 6, 4, 2, 2), torch.rand(2, 6, 4, 2).double())
    weight = randn(3, 2, 2, 3, 2, 3)
    options = {"competition": "position", "return_trace": True} | (STEADY if name.startswith("em") else {})
    logits = randn(2, 2, 3, 12, 3)
    together = route(name, ConvVotes(children, weight, stride=(2, 1)), initial_logits=logits, **options)
    for kind in range(3):
        votes = ConvVotes(children, weight[:, :, :, kind : kind + 1], stride=(2, 1))
        alone = route(name, votes, initial_logits=logits[..., kind : kind + 1], **options)
        for ours, theirs in zip(alone.trace, together.trace):
            assert_close(ours.coupling, theirs.coupling[..., kind : kind + 1])
            assert_close(ours.poses, theirs.poses[..., kind : kind + 1, :])


@every_routing
def test_a_single_type_is_global_competition(name):
    votes = conv_votes(num_parents=1, mask=torch.rand(2, 6, 4, 2) < 0.8)
    logits = randn(*votes.coupling_shape)
    one, other = (
        route(name, votes, initial_logits=logits, competition=competition, return_trace=True)
        for competition in ("global", "position")
    )
    for ours, theirs in zip(one.trace, other.trace):
        assert_close(tuple(ours), tuple(theirs))


@pytest.mark.parametrize("kind", ["dense", "class"])
@every_routing
def test_without_windows_types_compete(name, kind):
    votes = describe(kind)
    window, position = (route(name, votes, competition=c, return_trace=True) for c in ("window", "position"))
    for ours, theirs in zip(window.trace, position.trace):
        assert all(torch.equal(*parts) for parts in zip(ours, theirs))


@on_each_backend
def test_a_mirrored_map_is_routed_to_a_mirrored_one(backend):
    """Positions in reverse order, weights of a window too: an axis taken for another would show."""
    poses, activations, weight = randn(2, 5, 6, 2, 2), torch.rand(2, 5, 6, 2).double(), randn(3, 2, 2, 3, 2, 3)
    solve = partial(em_routing, **BETAS, competition="position", eps_var=0.01, backend=backend)
    one = solve(ConvVotes(Capsules(poses, activations), weight)).capsules
    other = solve(ConvVotes(Capsules(poses.flip(2), activations.flip(2)), weight.flip(1))).capsules
    assert_close(other.poses, one.poses.flip(2))
    assert_close(other.activations, one.activations.flip(2))
