"""What all routings have in common: padding, children nobody sees, subsets of parents, and refusals."""

from functools import partial

import pytest
import torch

from support.cases import conv_case, dense_case, rand, randn, random_mask, tensor_case
from support.situations import conv1d_case, with_activations
from torchcaps.routing import dynamic_routing, em_routing, entropy_routing, kmeans_routing, uniform_routing
from torchcaps.routing.competition import KINDS

pytestmark = pytest.mark.usefixtures("on_reference")

ROUTINGS = {
    "dynamic": dynamic_routing,
    "uniform": uniform_routing,
    "kmeans": kmeans_routing,
    "kmeans euclidean": partial(kmeans_routing, metric="euclidean"),
    "kmeans hard": partial(kmeans_routing, hard=True),
    "entropy": entropy_routing,
    "em": partial(em_routing, beta_a=0.5, beta_u=-0.3),
    "em mixing": partial(em_routing, beta_a=0.0, beta_u=0.0, activation="mixing"),
}
SOFTMAX_ROUTINGS = [name for name in ROUTINGS if not name.startswith("em")]


@pytest.fixture(params=ROUTINGS)
def routing(request):
    return ROUTINGS[request.param]


def weighed(routing, case):
    """The case with activations that the routing uses."""
    case = with_activations(case)
    return case if "beta_a" in getattr(routing, "keywords", {}) else case.given(amend=True)


def everything(result):
    steps = [value for step in result.trace for value in step]
    return [*result.capsules, result.coupling, *steps]


def test_padding_of_plain_votes_leaks_nowhere(routing):
    mask = random_mask(2, 7)
    case = weighed(routing, tensor_case())
    votes, activations = case.votes().clone(), case.options["activations"].clone()
    options = case.options | {"mask": mask, "return_trace": True}
    expected = everything(routing(votes, **options))
    votes[~mask], activations[~mask] = torch.nan, torch.nan
    votes.requires_grad_()
    activations.requires_grad_()
    result = routing(votes, **(options | {"activations": activations}))
    for ours, theirs in zip(everything(result), expected):
        assert torch.equal(ours, theirs)
    (result.capsules.poses.sum() + result.capsules.activations.sum()).backward()
    for leaf in (votes, activations):
        assert leaf.grad.isfinite().all()
        assert (leaf.grad[~mask] == 0).all()


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("make", [dense_case, conv_case], ids=["dense", "conv"])
def test_padding_of_descriptions_leaks_nowhere(routing, make, competition):
    case = weighed(routing, make(mask=True)).given(competition=competition, return_trace=True)
    expected = everything(routing(case.votes(), **case.options))
    leaves = {name: leaf.clone() for name, leaf in case.leaves.items()}
    leaves["poses"][~case.mask] = torch.nan
    leaves["activations"][~case.mask] = torch.nan
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    result = routing(case.votes(**leaves), **case.options)
    for ours, theirs in zip(everything(result), expected):
        assert torch.equal(ours, theirs)
    (result.capsules.poses.sum() + result.capsules.activations.sum()).backward()
    for name, leaf in leaves.items():
        assert leaf.grad.isfinite().all(), name
    assert (leaves["poses"].grad[~case.mask] == 0).all()
    assert (leaves["activations"].grad[~case.mask] == 0).all()


@pytest.mark.parametrize("competition", KINDS)
def test_a_child_no_window_sees_has_zero_gradient(routing, competition):
    case = weighed(routing, conv1d_case()).given(competition=competition)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in case.leaves.items()}
    result = routing(case.votes(**leaves), **case.options)
    (result.capsules.poses.square().sum() + result.capsules.activations.sum()).backward()
    for name in ("poses", "activations"):
        assert (leaves[name].grad[:, -1] == 0).all()
    assert (leaves["poses"].grad[:, :-1] != 0).any((0, 2, 3)).all()


def test_a_position_that_does_not_exist_is_empty(routing):
    case = weighed(routing, conv_case(window_mask=True))
    result = routing(case.votes(), **case.options, return_trace=True)
    absent = ~case.window_mask
    assert (result.capsules.poses[absent] == 0).all()
    assert (result.capsules.activations[absent] == 0).all()
    assert (result.coupling[absent] == 0).all()
    for step in result.trace:
        assert (step.activations[absent] == 0).all()


def test_an_example_whose_children_are_all_masked_is_finite(routing):
    mask = torch.tensor([[True] * 7, [False] * 7])
    case = weighed(routing, tensor_case())
    votes = case.votes().clone().requires_grad_()
    result = routing(votes, **case.options, mask=mask, return_trace=True)
    assert all(value.isfinite().all() for value in everything(result))
    assert (result.capsules.poses[1] == 0).all()
    (result.capsules.poses.sum() + result.capsules.activations.sum()).backward()
    assert votes.grad.isfinite().all()
    assert (votes.grad[1] == 0).all()


@pytest.mark.parametrize("name", SOFTMAX_ROUTINGS)
def test_a_drawn_subset_takes_part_alone(name):
    votes = randn(2, 5, 8, 3)
    sizes = []
    for _ in range(20):
        coupling = ROUTINGS[name](votes, partial=0.4).coupling
        sizes.append(int((coupling.sum((0, 1)) > 0).sum()))
        torch.testing.assert_close(coupling.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert min(sizes) >= 1
    assert max(sizes) < 8
    if "hard" not in name:
        assert len(set(sizes)) > 1


def test_at_least_one_parent_is_drawn():
    for _ in range(20):
        coupling = dynamic_routing(randn(1, 3, 4, 2), partial=1e-9).coupling
        assert (coupling > 0).any(1).sum() == 1


def test_all_parents_are_drawn_with_probability_one():
    votes = randn(1, 3, 4, 2)
    assert torch.equal(dynamic_routing(votes, partial=1.0).coupling, dynamic_routing(votes).coupling)


@pytest.mark.parametrize("name", SOFTMAX_ROUTINGS)
def test_refusals_of_activations(name):
    routing, votes = ROUTINGS[name], randn(2, 7, 3, 4)
    with pytest.raises(ValueError, match="amend multiplies couplings by child activations; give activations"):
        routing(votes, amend=True)
    with pytest.raises(ValueError, match="has no use for activations unless amend=True; leave them out"):
        routing(votes, activations=rand(2, 7))


def test_refusals_common_to_all(routing):
    case = weighed(routing, tensor_case())

    def refuse(error, message, **options):
        with pytest.raises(error, match=message):
            routing(case.votes(), **(case.options | options))

    refuse(
        ValueError,
        "competition must be one of 'window', 'global', 'position', got 'windows'; did you mean 'window'",
        competition="windows",
    )
    refuse(
        ValueError,
        r"initial_logits must have shape of the couplings = \(2, 7, 3\), got \(7, 3\)",
        initial_logits=randn(7, 3),
    )
    refuse(
        TypeError,
        "initial_logits has dtype torch.float32 but votes has torch.float64; convert one of them",
        initial_logits=torch.zeros(2, 7, 3),
    )
    refuse(TypeError, r"mask must be a boolean tensor \(True = takes part\), got torch.float64", mask=rand(2, 7))
    refuse(ValueError, r"mask must have shape \(B, I\) = \(2, 7\), got \(2, 3\)", mask=random_mask(2, 3))
    refuse(ValueError, r"activations must have shape \(B, I\) = \(2, 7\), got \(2, 3\)", activations=rand(2, 3))
    refuse(TypeError, "unexpected keyword argument 'iterations'", iterations=3)
    with pytest.raises(TypeError, match="votes must be a tensor .* got list"):
        routing([1.0], **case.options)
    with pytest.raises(TypeError, match="positional argument"):
        routing(case.votes(), None, 3)  # options are keyword-only


@pytest.mark.parametrize("name", [name for name in ROUTINGS if name != "uniform"])
def test_iterations_are_whole_numbers(name):
    options = {"activations": rand(2, 7)} if name.startswith("em") else {}
    for wrong in (2.0, "3", True, None):
        with pytest.raises(TypeError, match="num_iterations must be an integer of at least"):
            ROUTINGS[name](randn(2, 7, 3, 4), num_iterations=wrong, **options)
    with pytest.raises(ValueError, match="num_iterations must be at least"):
        ROUTINGS[name](randn(2, 7, 3, 4), num_iterations=-1, **options)


@pytest.mark.parametrize("name", SOFTMAX_ROUTINGS)
def test_refusals_of_subsets(name):
    routing, votes = ROUTINGS[name], randn(2, 7, 3, 4)
    for wrong in (0, 1.5, -0.1, True, "half"):
        with pytest.raises(
            ValueError, match=r"partial must be the probability in \(0, 1\].*or a boolean tensor \(J,\), got"
        ):
            routing(votes, partial=wrong)
    with pytest.raises(ValueError, match=r"partial must have shape \(J,\) = \(3,\), got \(2,\)"):
        routing(votes, partial=torch.tensor([True, False]))
    with pytest.raises(TypeError, match="partial must be a boolean tensor"):
        routing(votes, partial=torch.tensor([1.0, 0.0, 1.0]))


def test_somebody_must_take_part():
    with pytest.raises(ValueError, match="partial must let at least one parent take part"):
        dynamic_routing(randn(2, 4, 3, 2), partial=torch.zeros(3, dtype=torch.bool))


def test_half_precision_is_refused(routing):
    votes = randn(2, 4, 3, 2).half()
    activations = {"activations": rand(2, 4).half()} if "em" in str(routing) else {}
    with pytest.raises(TypeError, match="wider range of numbers than float16 has"):
        routing(votes, **activations)


def test_hard_assignment_has_no_temperature():
    with pytest.raises(ValueError, match="leave out inverse_temperature=1.0 or hard=True"):
        kmeans_routing(randn(2, 4, 3, 2), hard=True, inverse_temperature=1.0)
