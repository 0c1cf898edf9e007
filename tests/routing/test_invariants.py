"""What does not change the result of a routing, and who has no say in it."""

import math

import pytest
import torch
from torch.testing import assert_close

from support.algorithms import (
    ALL,
    LEAKY,
    NO_SHARES,
    competitors,
    conv_votes,
    describe,
    of_competitors,
    route,
    weighs_by_activation,
)
from support.cases import rand, randn, random_mask
from torchcaps.capsules import Capsules
from torchcaps.routing import em_routing
from torchcaps.routing.competition import KINDS
from torchcaps.votes import ConvVotes, DenseVotes

pytestmark = pytest.mark.usefixtures("on_reference")

every_routing = pytest.mark.parametrize("name", list(ALL))
every_competition = pytest.mark.parametrize("competition", KINDS)
every_description = pytest.mark.parametrize(
    ("kind", "competition"),
    [("dense", "window"), ("class", "global"), ("dense", "position"), ("conv1d", "global"), ("conv1d", "position")]
    + [("conv", competition) for competition in KINDS],
)
PER_PARENT = {
    "em": ("beta_a", "beta_u"),
    "vb": ("beta_a", "beta_u"),
    "heinsen": ("beta_use", "beta_ignore"),
    "self_attention": ("bias",),
}
TIGHT = {"rtol": 1e-12, "atol": 1e-14}


# Permutations


@every_routing
def test_children_have_no_order(name):
    votes, activations, logits = randn(2, 9, 4, 3), rand(2, 9), randn(2, 9, 4)
    mask, order = random_mask(2, 9), torch.randperm(9)
    one = route(name, votes, activations, mask=mask, initial_logits=logits)
    other = route(name, votes[:, order], activations[:, order], mask=mask[:, order], initial_logits=logits[:, order])
    assert_close(other.capsules, one.capsules, rtol=1e-10, atol=1e-12)
    assert_close(other.coupling, one.coupling[:, order], rtol=1e-10, atol=1e-12)


@every_routing
def test_parents_have_no_order(name):
    votes, activations, logits, order = randn(2, 9, 4, 3), rand(2, 9), randn(2, 9, 4), torch.randperm(4)
    betas, permuted = {}, {}
    if learned := PER_PARENT.get(name.split()[0]):
        betas = {key: randn(4) for key in learned}
        permuted = {key: beta[order] for key, beta in betas.items()}
    one = route(name, votes, activations, initial_logits=logits, **betas)
    other = route(name, votes[:, :, order], activations, initial_logits=logits[..., order], **permuted)
    assert_close(other.capsules.poses, one.capsules.poses[:, order], rtol=1e-10, atol=1e-12)
    assert_close(other.capsules.activations, one.capsules.activations[:, order], rtol=1e-10, atol=1e-12)
    assert_close(other.coupling, one.coupling[..., order], rtol=1e-10, atol=1e-12)


@every_competition
@every_routing
def test_types_of_a_feature_map_have_no_order(name, competition):
    poses, activations, weight = randn(2, 6, 4, 3, 2), rand(2, 6, 4, 3), randn(3, 2, 3, 4, 2, 3)
    children, parents = torch.randperm(3), torch.randperm(4)
    one = route(name, ConvVotes(Capsules(poses, activations), weight, stride=(2, 1)), competition=competition)
    permuted = Capsules(poses[:, :, :, children], activations[:, :, :, children])
    moved = ConvVotes(permuted, weight[:, :, children][:, :, :, parents], stride=(2, 1))
    other = route(name, moved, competition=competition)
    assert_close(other.capsules.poses, one.capsules.poses[..., parents, :], rtol=1e-10, atol=1e-12)
    assert_close(other.capsules.activations, one.capsules.activations[..., parents], rtol=1e-10, atol=1e-12)
    coupling = one.coupling.unflatten(-2, (6, 3))[..., children, :][..., parents].flatten(-3, -2)
    assert_close(other.coupling, coupling, rtol=1e-10, atol=1e-12)


# Examples do not know of each other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 4, 8), (2, 1, 1, 1), (2, 33, 7, 3), (2, 63, 1, 16), (2, 150, 10, 16)])
@every_routing
def test_batch_of_n_is_n_of_one_bit_for_bit(name, shape, dtype):
    votes, activations = torch.randn(shape, dtype=dtype), torch.rand(shape[:2], dtype=dtype)
    given = {"initial_logits": torch.randn(shape[:3], dtype=dtype), "mask": random_mask(*shape[:2])}
    together = route(name, votes, activations, return_trace=True, **given)
    for example in range(shape[0]):
        one = slice(example, example + 1)
        its_own = {key: value[one] for key, value in given.items()}
        alone = route(name, votes[one], activations[one], return_trace=True, **its_own)
        assert torch.equal(alone.capsules.poses, together.capsules.poses[one])
        assert torch.equal(alone.coupling, together.coupling[one])
        assert torch.equal(alone.trace[-1].objective, together.trace[-1].objective[one])
        if together.logits is None:
            assert torch.equal(alone.capsules.activations, together.capsules.activations[one])
        else:  # the sigmoid of torch rounds in two ways, of full registers and of what is left
            assert torch.equal(alone.logits, together.logits[one])
            rounding = torch.finfo(dtype).eps
            assert_close(alone.capsules.activations, together.capsules.activations[one], rtol=rounding, atol=0)


@every_description
@every_routing
def test_batch_of_n_is_n_of_one_through_descriptions(name, competition, kind):
    votes = describe(kind)
    together = route(name, votes, competition=competition)
    alone = route(name, votes.narrow(2, 1), competition=competition)
    assert_close(alone.capsules.poses, together.capsules.poses[2:], **TIGHT)
    assert_close(alone.capsules.activations, together.capsules.activations[2:], **TIGHT)
    assert_close(alone.coupling, together.coupling[2:], **TIGHT)


@every_routing
def test_nothing_is_carried_over_between_calls(name):
    votes, activations, mask = randn(2, 7, 3, 4), rand(2, 7), random_mask(2, 7)
    inputs = votes.clone(), activations.clone(), mask.clone()
    first = route(name, votes, activations, mask=mask)
    route(name, 10 * randn(4, 7, 3, 4), rand(4, 7))
    again = route(name, votes, activations, mask=mask)
    assert torch.equal(first.capsules.poses, again.capsules.poses)
    assert torch.equal(first.capsules.activations, again.capsules.activations)
    assert torch.equal(first.coupling, again.coupling)
    assert all(torch.equal(*pair) for pair in zip(inputs, (votes, activations, mask))), "inputs are left alone"


# Children without a vote


@pytest.mark.parametrize("name", [name for name in ALL if weighs_by_activation(name)])
def test_child_of_activation_zero_has_no_vote(name):
    votes, activations = randn(2, 7, 3, 4), rand(2, 7)
    activations[:, [1, 4]] = 0
    one = route(name, votes, activations)
    votes = votes.clone()
    votes[:, [1, 4]] = 100 * randn(2, 2, 3, 4)
    other = route(name, votes.requires_grad_(), activations)
    assert torch.equal(one.capsules.poses, other.capsules.poses)
    assert torch.equal(one.capsules.activations, other.capsules.activations)
    (gradient,) = torch.autograd.grad((other.capsules.poses.sum() + other.capsules.activations.sum()), votes)
    assert not gradient[:, [1, 4]].any()
    assert gradient[:, [0, 2, 3, 5, 6]].flatten(2).any(-1).all()


@pytest.mark.parametrize("options", [{"cost_scale": "paper"}, {"activation": "mixing"}, {"activation": "entropy"}])
def test_child_of_activation_zero_is_no_child_of_em(options):
    """With cost_scale="mass" it still counts in the mean mass of a parent, which is that of R and not of R a."""
    votes, activations, kept = randn(2, 7, 3, 4), rand(2, 7), [0, 2, 3, 5, 6]
    activations[:, [1, 4]] = 0
    there = em_routing(votes, activations, beta_a=0.3, beta_u=-0.2, **options)
    removed = em_routing(votes[:, kept], activations[:, kept], beta_a=0.3, beta_u=-0.2, **options)
    assert_close(there.capsules, removed.capsules, **TIGHT)


@every_routing
def test_masked_child_is_no_child(name):
    votes, activations, kept = randn(2, 7, 3, 4), rand(2, 7), [0, 2, 3, 5, 6]
    votes[:, [1, 4]] = activations[:, [1, 4]] = math.nan  # padding may hold anything
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[:, [1, 4]] = False
    votes, activations = votes.requires_grad_(), activations.requires_grad_()
    masked = route(name, votes, activations, mask=mask, return_trace=True)
    removed = route(name, votes[:, kept], activations[:, kept], return_trace=True)
    assert_close(masked.capsules, removed.capsules, **TIGHT)
    assert_close(masked.coupling[:, kept], removed.coupling, **TIGHT)
    assert not masked.coupling[:, [1, 4]].any()
    for ours, theirs in zip(masked.trace, removed.trace):
        assert_close(ours.objective, theirs.objective, rtol=1e-11, atol=1e-12)
    loss = masked.capsules.poses.square().sum() + masked.capsules.activations.sum()
    gradients = torch.autograd.grad(loss, (votes, activations), allow_unused=True)
    for gradient in gradients:
        if gradient is not None:
            assert gradient.isfinite().all()
            assert not gradient[:, [1, 4]].any()


@pytest.mark.parametrize(("kind", "competition"), [("dense", "window"), *(("conv", kind) for kind in KINDS)])
@every_routing
def test_masked_pose_of_nan_is_never_seen(name, competition, kind):
    """Through a description, bias included: values and gradients are those of any other padding."""
    if kind == "conv":
        shape, weight, bias = (2, 6, 4, 2), randn(3, 2, 2, 3, 2, 3), randn(3, 2, 2, 3, 3)
    else:
        shape, weight, bias = (2, 7), randn(7, 3, 2, 3), randn(7, 3, 3)
    poses, activations, mask = randn(*shape, 2), rand(*shape), random_mask(*shape)
    outcomes = []
    for padding in (0.0, math.nan):
        leaves = [
            torch.where(mask.unsqueeze(-1), poses, padding).requires_grad_(),
            torch.where(mask, activations, padding).requires_grad_(),
            weight.clone().requires_grad_(),
        ]
        children = Capsules(*leaves[:2])
        if kind == "conv":
            votes = ConvVotes(children, leaves[2], bias=bias, mask=mask, stride=(2, 1))
        else:
            votes = DenseVotes(children, leaves[2], bias=bias, mask=mask)
        result = route(name, votes, competition=competition)
        loss = result.capsules.poses.square().sum() + result.capsules.activations.sum()
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        outcomes.append([*result.capsules, result.coupling, *(g for g in gradients if g is not None)])
    for of_zeros, of_nan in zip(*outcomes):
        assert of_zeros.isfinite().all()
        assert torch.equal(of_zeros, of_nan)
    assert not outcomes[0][3][~mask].any(), "masked poses have no gradient"


@every_competition
@every_routing
def test_child_no_window_reaches_has_no_part(name, competition):
    votes = conv_votes()  # 6 rows, kernel 3, stride 2: the last row is seen by no window
    poses = votes.poses.clone().requires_grad_()
    activations = votes.activations.clone().requires_grad_()
    children = Capsules(poses.view(2, 6, 4, 2, 2), activations.view(2, 6, 4, 2))
    weight = votes.weight.view(3, 2, 2, 3, 2, 3)
    seen = ConvVotes(children, weight, stride=(2, 1))
    result = route(name, seen, competition=competition)
    loss = result.capsules.poses.square().sum() + result.capsules.activations.sum()
    gradients = torch.autograd.grad(loss, (poses, activations), allow_unused=True)
    assert (gradients[1] is not None) == weighs_by_activation(name)
    for gradient in gradients:
        if gradient is not None:
            gradient = gradient.unflatten(1, (6, 4, 2))
            assert not gradient[:, 5].any()
            assert gradient[:, :5].any()
    assert not competitors(result.coupling, seen, "global", 0.0)[:, -8:].any()
    with torch.no_grad():
        children.poses[:, 5] = 1e3
        children.activations[:, 5] = 1 - children.activations[:, 5]
    again = route(
        name, ConvVotes(children, votes.weight.view(3, 2, 2, 3, 2, 3), stride=(2, 1)), competition=competition
    )
    assert torch.equal(result.capsules.poses, again.capsules.poses)
    assert torch.equal(result.capsules.activations, again.capsules.activations)


# Couplings


@every_description
@pytest.mark.parametrize("name", [name for name in ALL if name not in NO_SHARES])
def test_couplings_sum_to_one_over_the_parents_reached(name, competition, kind):
    votes = describe(kind)
    votes = votes.given(activations=None, mask=random_mask(3, votes.num_children))
    for number, step in enumerate(route(name, votes, competition=competition, return_trace=True).trace):
        rows = competitors(step.coupling, votes, competition, 0.0)
        assert (rows >= 0).all()
        whole = votes.activations if name.endswith("amended") else torch.ones_like(votes.activations)
        expected = torch.where(votes.mask, whole, 0.0)
        is_leaky = any(name.startswith(leaky) for leaky in LEAKY)
        if number == 0 and competition == "position":  # equal shares of types, which do not compete later
            share = votes.slots(expected).unsqueeze(-1) / (votes.num_parents + is_leaky)
            assert_close(step.coupling, share.expand_as(step.coupling), **TIGHT)
            continue
        if votes.windows is not None and competition != "window":
            seen = votes.windows.children().flatten().bincount(minlength=votes.num_children) > 0
            expected = expected * seen
        expected = of_competitors(expected, votes, competition)
        if is_leaky:
            assert (rows.sum(-1) <= expected).all()
            assert (rows.sum(-1) < expected)[expected > 0].all()
        else:
            assert_close(rows.sum(-1), expected, **TIGHT)


@every_description
def test_couplings_of_max_min_are_places_between_extremes(kind, competition):
    """0 for the worst parent of a child and 1 for its best one, from the second iteration on; before, all are 1."""
    votes = describe(kind)
    votes = votes.given(activations=None, mask=random_mask(3, votes.num_children))
    first, *later = route("max_min", votes, competition=competition, return_trace=True).trace
    takes_part = votes.slots(votes.mask).unsqueeze(-1).expand_as(first.coupling)
    assert torch.equal(first.coupling, takes_part.to(first.coupling))
    for step in later:
        assert ((step.coupling >= 0) & (step.coupling <= 1)).all()
        of_child = competitors(step.coupling, votes, competition, -1.0)
        there = competitors(takes_part.to(step.coupling), votes, competition, 0.0).any(-1)
        assert (of_child.amax(-1)[there] == 1).all()
        assert not step.coupling[~takes_part].any()


@every_description
def test_couplings_of_self_attention_are_shares_and_a_bias(kind, competition):
    votes = describe(kind)
    mask = random_mask(3, votes.num_children)
    votes, bias = votes.given(activations=None, mask=mask), randn(votes.num_slots, votes.num_parents)
    with_bias, without = (
        route("self_attention", votes, competition=competition, bias=value).coupling for value in (bias, None)
    )
    takes_part = votes.slots(mask).unsqueeze(-1)
    assert_close(with_bias, torch.where(takes_part, without + bias, 0.0), **TIGHT)
    rows = competitors(without, votes, competition, 0.0)
    there = competitors(takes_part.expand_as(without).to(without), votes, competition, 0.0).any(-1)
    assert_close(rows.sum(-1), there.to(rows), **TIGHT)
