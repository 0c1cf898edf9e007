"""Interests of people against loops, and what must never change them: padding, neighbours in the batch, old items."""

import math

import pytest
import torch

from torchcaps.capsules import squash
from torchcaps.nn import MultiInterest, create_routing, label_aware_attention
from torchcaps.routing import plan, routing_names

LENGTHS = (9, 4, 1, 6)
MAPS = {"shared": {}, "positions": {"max_length": 6}, "attention": {"max_length": 6}}
UNLEARNED = ("dynamic", "entropy", "kmeans", "max_min", "uniform")


def make_layer(maps="shared", *, routing=None, num_interests=3, **options):
    torch.manual_seed(0)
    chosen = None if routing is None else create_routing(routing)
    return MultiInterest(5, 5, num_interests, routing=chosen, maps=maps, dtype=torch.float64, **MAPS[maps], **options)


def people():
    torch.manual_seed(1)
    items = torch.randn(len(LENGTHS), max(LENGTHS), 5, dtype=torch.float64)
    return items, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def loop_of_dynamic_routing(items, votes, start, num_interests, num_iterations=3):
    """One person: items (n, K), votes[i][k], start (places, J)."""
    logits = [[start[i, k] for k in range(num_interests)] for i in range(len(items))]
    for iteration in range(num_iterations):
        sums = [torch.zeros(5, dtype=torch.float64) for _ in range(num_interests)]
        for i in range(len(items)):
            coupling = torch.stack(logits[i]).softmax(0)  # over interests
            for k in range(num_interests):
                sums[k] = sums[k] + coupling[k] * votes[i][k]
        interests = [squash(total) for total in sums]
        if iteration + 1 < num_iterations:
            logits = [
                [logits[i][k] + votes[i][k] @ interests[k] for k in range(num_interests)] for i in range(len(items))
            ]
    return torch.stack(interests)


def test_mind_is_dynamic_routing_with_one_matrix():
    layer, (items, mask) = make_layer(), people()
    found = layer(items, mask).poses
    for person, length in enumerate(LENGTHS):
        own = items[person, :length]
        votes = [[item @ layer.weight] * 3 for item in own]
        torch.testing.assert_close(found[person], loop_of_dynamic_routing(own, votes, layer.start, 3))


def test_comirec_dr_has_a_matrix_for_each_place_of_the_latest_items():
    layer, (items, mask) = make_layer("positions"), people()
    found = layer(items, mask).poses
    for person, length in enumerate(LENGTHS):
        own = items[person, max(0, length - 6) : length]
        votes = [[item @ layer.weight[place, k] for k in range(3)] for place, item in enumerate(own)]
        torch.testing.assert_close(found[person], loop_of_dynamic_routing(own, votes, layer.start, 3))


def test_comirec_sa_weighs_the_latest_items():
    layer, (items, mask) = make_layer("attention"), people()
    result = layer.route(items, mask)
    for person, length in enumerate(LENGTHS):
        own = items[person, max(0, length - 6) : length]
        placed = own + layer.places[: len(own)]
        for k in range(3):
            logits = [layer.weights.weight[k] @ torch.tanh(layer.hidden.weight @ item) for item in placed]
            shares = torch.stack(logits).softmax(0)
            torch.testing.assert_close(result.capsules.poses[person, k], (shares[:, None] * own).sum(0))
            torch.testing.assert_close(result.coupling[person, max(0, length - 6) : length, k], shares.detach())


def test_one_interest_is_pooling():
    items, mask = people()
    layer = make_layer(num_interests=1)
    pooled = (torch.where(mask[..., None], items, 0) @ layer.weight).sum(1, keepdim=True)
    torch.testing.assert_close(layer(items, mask).poses, squash(pooled))
    mean = make_layer("attention", num_interests=1)
    torch.nn.init.zeros_(mean.weights.weight)  # nothing tells items apart
    latest = torch.stack([items[n, max(0, length - 6) : length].mean(0) for n, length in enumerate(LENGTHS)])
    torch.testing.assert_close(mean(items, mask).poses[:, 0], latest)


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("routing", [None, *routing_names()])
@pytest.mark.parametrize("dynamic", [False, True])
def test_padding_and_neighbours_change_nothing(maps, routing, dynamic):
    if maps == "attention" and routing is not None:
        pytest.skip("attention routes nothing")
    layer, (items, mask) = make_layer(maps, routing=routing, dynamic=dynamic), people()
    result = layer.route(items, mask)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(layer(items[order], mask[order]).poses, result.capsules.poses[order])
    for person, length in enumerate(LENGTHS):
        alone = layer.route(items[person : person + 1, :length])
        torch.testing.assert_close(alone.capsules.poses[0], result.capsules.poses[person])
        torch.testing.assert_close(alone.coupling[0], result.coupling[person, :length])
        # padding before, between and after the items, whatever it holds
        spread = torch.full((1, 2 * length + 2, 5), torch.nan, dtype=torch.float64)
        spread[0, 1 : 2 * length : 2] = items[person, :length]
        where = torch.zeros(1, 2 * length + 2, dtype=torch.bool)
        where[0, 1 : 2 * length : 2] = True
        padded = layer.route(spread, where)
        torch.testing.assert_close(padded.capsules.poses[0], result.capsules.poses[person])
        torch.testing.assert_close(padded.coupling[where], alone.coupling[0])
        assert not padded.coupling[~where].any()


@pytest.mark.parametrize("routing", routing_names())
def test_every_routing_learns_interests(routing):
    layer, (items, mask) = make_layer(routing=routing, dynamic=True, initial_logits="learned"), people()
    layer = layer.float()
    items = items.float().requires_grad_()
    result = layer.route(items, mask, return_trace=True)
    assert result.trace
    assert torch.equal(result.trace[-1].coupling, result.coupling)
    (result.capsules.poses * torch.randn(4, 3, 5)).sum().backward()
    gradients = [items.grad, *(parameter.grad for parameter in layer.parameters() if parameter.grad is not None)]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert layer.weight.grad.any()
    present = (result.capsules.activations > 0).sum(1).tolist()
    assert present == [3, 2, 1, 2]  # floor(log2 n), at least one
    assert not result.coupling[1, :, 2].any()
    if routing != "max_min":  # whose couplings are no shares
        torch.testing.assert_close(result.coupling.sum(-1), mask.float())


@pytest.mark.parametrize("routing", UNLEARNED)
@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_interests_that_are_not_there_are_as_if_they_had_never_been(routing, backend, one_example_chunks):
    layer, (items, mask) = make_layer(routing=routing, dynamic=True), people()
    layer.routing.update(backend=backend)
    found = layer(items, mask).poses
    for person, count in enumerate((3, 2, 1, 2)):
        small = make_layer(routing=routing, num_interests=count)
        small.weight, small.start = layer.weight, torch.nn.Parameter(layer.start[:, :count])
        alone = small(items[person : person + 1], mask[person : person + 1]).poses[0]
        torch.testing.assert_close(found[person, :count], alone)
        assert not found[person, count:].any()


def test_kernels_say_why_they_leave_people_with_fewer_interests_to_others():
    layer, (items, mask) = make_layer(dynamic=True), people()
    votes = layer.votes(items, mask, layer.present(mask))
    assert "parent_mask" in plan(layer.routing, votes).reasons["fused"]
    with pytest.raises(ValueError, match=r"parent_mask must have shape \(B, J\) = \(4, 3\), got \(4, 2\)"):
        layer.votes(items, mask, torch.ones(4, 2, dtype=torch.bool))


def test_who_has_no_items_has_no_interests():
    for maps in MAPS:
        layer = make_layer(maps)
        result = layer.route(torch.randn(2, 3, 5, dtype=torch.float64), torch.tensor([[True] * 3, [False] * 3]))
        assert result.capsules.poses[0].any()
        assert not result.capsules.poses[1].any()
        assert not result.coupling[1].any()


def test_initial_logits_belong_to_places_and_are_saved():
    layer, (items, mask) = make_layer(), people()
    assert "start" in layer.state_dict()
    assert not layer.start.requires_grad
    first = layer.route(items, mask, return_trace=True).trace[0].coupling
    expected = torch.where(mask[..., None], layer.start[:9].softmax(-1), 0.0)
    torch.testing.assert_close(first, expected)  # the same for everybody
    assert make_layer(initial_logits="learned").start.requires_grad
    zero = make_layer(initial_logits="zero").route(items, mask).capsules.poses
    torch.testing.assert_close(zero[:, 0], zero[:, 1])  # one matrix alone does not tell interests apart
    long = torch.randn(1, 150, 5, dtype=torch.float64)
    assert torch.isfinite(layer(long).poses).all()  # any length


def test_detached_couplings_let_no_gradient_through():
    items, mask = people()
    layer = make_layer()
    layer.routing.update(detach_couplings=True)
    (gradient,) = torch.autograd.grad(layer(items, mask).poses.sum(), layer.weight)
    coupling = layer.route(items, mask).coupling
    sums = torch.einsum("bij,bid->bjd", coupling, torch.where(mask[..., None], items, 0) @ layer.weight)
    (expected,) = torch.autograd.grad(squash(sums).sum(), layer.weight)
    torch.testing.assert_close(gradient, expected)


def test_label_aware_attention_from_the_mean_to_the_best():
    torch.manual_seed(0)
    interests, items = torch.randn(6, 3, 4), torch.randn(6, 4)
    scores = torch.einsum("bjd,bd->bj", interests, items)
    torch.testing.assert_close(label_aware_attention(interests, items, power=0), interests.mean(1))
    best = interests[torch.arange(6), scores.argmax(1)]
    assert torch.equal(label_aware_attention(interests, items), best)
    sure = scores.amax(1) > 1.1
    torch.testing.assert_close(label_aware_attention(interests, items, power=40)[sure], best[sure])
    large = (1e3 * interests).requires_grad_()
    (gradient,) = torch.autograd.grad(label_aware_attention(large, 1e3 * items, power=40).sum(), large)
    assert torch.isfinite(gradient).all()
    weights = (scores.sign() * scores.square()).softmax(1)  # an even power keeps the sign
    expected = (weights[..., None] * interests).sum(1)
    torch.testing.assert_close(label_aware_attention(interests, items, power=2), expected)
    present = torch.tensor([[True, False, False]]).expand(6, -1)
    for power in (0, 1, 2.5, math.inf):
        torch.testing.assert_close(
            label_aware_attention(interests, items, power=power, present=present), interests[:, 0]
        )


def test_wrong_use_is_told_in_a_sentence():
    with pytest.raises(ValueError, match="a matrix for each place; give max_length"):
        MultiInterest(5, 5, 3, maps="positions")
    with pytest.raises(ValueError, match="weighs items and routes nothing; leave out routing"):
        MultiInterest(5, 5, 3, maps="attention", routing=create_routing("em"))
    with pytest.raises(ValueError, match="hidden_size is of maps='attention'"):
        MultiInterest(5, 5, 3, hidden_size=4)
    with pytest.raises(TypeError, match="routing must be an instance such as DynamicRouting"):
        MultiInterest(5, 5, 3, routing="em")
    with pytest.raises(ValueError, match=r"items must have shape \(B, T, 5\), got \(2, 3, 4\)"):
        MultiInterest(5, 5, 3)(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="power must be 0 or at least 1, got 0.5"):
        label_aware_attention(torch.zeros(1, 2, 3), torch.zeros(1, 3), power=0.5)
