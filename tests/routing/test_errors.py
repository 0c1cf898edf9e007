"""What a caller can get wrong: each message says what was expected, what came and what to do."""

import re

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.routing import (
    attention_routing,
    dynamic_routing,
    em_routing,
    entropy_routing,
    find_routing,
    heinsen_routing,
    kmeans_routing,
    max_min_routing,
    plan,
    routing_names,
    self_attention_routing,
    self_routing,
    uniform_routing,
    use_backend,
    vb_routing,
    why_not,
)
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes

VOTES = torch.zeros(2, 6, 3, 4)
ONES = torch.ones(2, 6)
BETAS = {"beta_a": 0.0, "beta_u": 0.0}


def em(votes, activations=ONES, **options):
    return em_routing(votes, activations, **(BETAS | options))


def vb(votes, activations=ONES, **options):
    return vb_routing(votes, activations, **(BETAS | options))


def heinsen(votes, activations=ONES, **options):
    return heinsen_routing(votes, activations, **({"beta_use": 0.0, "beta_ignore": 0.0} | options))


def self_(votes, activations=ONES, **options):
    return self_routing(votes, activations, **options)


ROUTINGS = {
    "dynamic": dynamic_routing,
    "uniform": uniform_routing,
    "kmeans": kmeans_routing,
    "entropy": entropy_routing,
    "attention": attention_routing,
    "self_attention": self_attention_routing,
    "max_min": max_min_routing,
    "em": em,
    "vb": vb,
    "heinsen": heinsen,
    "self": self_,
}
WEIGHING = {"em": em_routing, "vb": vb_routing, "heinsen": heinsen_routing, "self": self_routing}
COUPLING = [name for name in ROUTINGS if name not in WEIGHING]
every_routing = pytest.mark.parametrize("name", list(ROUTINGS))


def raises(error: type[Exception], *parts: str):
    """`error`, whose message has all the parts in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(map(re.escape, parts)))


def test_no_routing_of_the_package_is_left_out():
    entries = map(find_routing, routing_names())
    assert {entry.name for entry in entries if entry.module.__module__.startswith("torchcaps.")} == set(ROUTINGS)


# What all routings have in common


@every_routing
@pytest.mark.parametrize("shape", [(6, 3, 4), (2, 2, 6, 3, 4), (2, 0, 3, 4), (2, 6, 0, 4), (2, 6, 3, 0)])
def test_shape_of_votes(name, shape):
    with raises(ValueError, "votes must have shape (B, I, J, D)", f"got {shape}", "ConvVotes"):
        ROUTINGS[name](torch.zeros(shape))


@every_routing
def test_votes_that_are_no_votes(name):
    with raises(TypeError, "votes must be floating point", "got torch.int64", ".float()"):
        ROUTINGS[name](VOTES.long())
    with raises(TypeError, "votes must be a tensor (B, I, J, D) or a description such as DenseVotes", "got list"):
        ROUTINGS[name](VOTES.tolist())
    with raises(TypeError, "votes must be a tensor", "got NoneType"):
        ROUTINGS[name](None)


@every_routing
def test_mask(name):
    with raises(ValueError, "mask must have shape (B, I) = (2, 6)", "got (2, 5)"):
        ROUTINGS[name](VOTES, mask=torch.ones(2, 5, dtype=torch.bool))
    with raises(TypeError, "mask must be a boolean tensor (True = takes part)", "got torch.float32", ".bool()"):
        ROUTINGS[name](VOTES, mask=torch.ones(2, 6))
    with raises(TypeError, "mask must be a boolean tensor", "got list", ".bool()"):
        ROUTINGS[name](VOTES, mask=[[True] * 6] * 2)
    votes = DenseVotes(torch.zeros(2, 6, 2), torch.zeros(6, 3, 2, 4), mask=torch.ones(2, 6, dtype=torch.bool))
    with raises(ValueError, "the mask is already part of the votes", "leave it out of the call"):
        ROUTINGS[name](votes, mask=torch.ones(2, 6, dtype=torch.bool))


@every_routing
def test_initial_logits(name):
    with raises(ValueError, "initial_logits must have shape of the couplings = (2, 6, 3)", "got (6, 3)"):
        ROUTINGS[name](VOTES, initial_logits=torch.zeros(6, 3))
    with raises(TypeError, "initial_logits has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        ROUTINGS[name](VOTES, initial_logits=torch.zeros(2, 6, 3, dtype=torch.float64))
    with raises(TypeError, "initial_logits must be floating point", "got torch.int64", ".float()"):
        ROUTINGS[name](VOTES, initial_logits=torch.zeros(2, 6, 3, dtype=torch.long))
    with raises(ValueError, "initial_logits is on meta but votes is on cpu", ".to(device)"):
        ROUTINGS[name](VOTES, initial_logits=torch.zeros(2, 6, 3, device="meta"))


@every_routing
def test_competition_and_backend(name):
    with raises(
        ValueError, "competition must be one of 'window', 'global', 'position'", "got 'globl'", "did you mean 'global'?"
    ):
        ROUTINGS[name](VOTES, competition="globl")
    with raises(
        ValueError, "backend must be one of 'auto', 'fused', 'triton', 'chunked', 'reference'", "mean 'reference'?"
    ):
        ROUTINGS[name](VOTES, backend="refrence")


@pytest.mark.parametrize("name", ["dynamic", "entropy", "em", "vb", "heinsen", "attention", "max_min"])
def test_number_of_iterations(name):
    with raises(ValueError, "num_iterations must be at least 1, got 0"):
        ROUTINGS[name](VOTES, num_iterations=0)
    for wrong in (2.0, "3", True, None):
        with raises(TypeError, "num_iterations must be an integer of at least 1", f"got {wrong!r}"):
            ROUTINGS[name](VOTES, num_iterations=wrong)


# An option an algorithm does not have is refused

AMENDABLE = set(COUPLING)
OWN_OPTIONS = {
    "leaky": (True, {"dynamic", "uniform"}),
    "detach_couplings": (True, {"dynamic", "em", "vb", "heinsen", "max_min"}),
    "squash_k": (0.5, {"dynamic", "uniform", "kmeans", "attention", "max_min"}),
    "metric": ("dot", {"kmeans"}),
    "inverse_temperature": (2.0, {"kmeans", "em"}),
    "hard": (True, {"kmeans"}),
    "alpha": (0.2, {"entropy"}),
    "alpha0": (0.5, {"vb"}),
    "lambda_schedule": (0.1, {"em"}),
    "eps": (1e-4, {"attention"}),
    "eps_var": (1e-4, {"em", "heinsen"}),
    "cost_scale": ("paper", {"em"}),
    "activation": ("mixing", {"em"}),
    "beta_a": (0.1, {"em", "vb"}),
    "beta_u": (0.1, {"em", "vb"}),
    "beta_use": (0.1, {"heinsen"}),
    "bias": (0.1, {"self_attention"}),
    "amend": (False, AMENDABLE),
    "partial": (0.5, AMENDABLE),
    "num_iterations": (2, {"dynamic", "kmeans", "entropy", "em", "vb", "heinsen", "attention", "max_min"}),
}


@every_routing
@pytest.mark.parametrize("option", list(OWN_OPTIONS))
def test_option_of_another_algorithm_is_refused(name, option):
    value, owners = OWN_OPTIONS[option]
    if name in owners:
        ROUTINGS[name](VOTES, **{option: value})
    else:
        with raises(TypeError, "unexpected keyword argument", f"'{option}'"):
            ROUTINGS[name](VOTES, **{option: value})


@every_routing
def test_options_have_names(name):
    routing = WEIGHING.get(name, ROUTINGS[name])
    with raises(TypeError, "positional argument"):
        routing(VOTES, ONES, 3)


# Options of the routings whose couplings alone weigh a child


@pytest.mark.parametrize("name", COUPLING)
def test_activations_without_amend(name):
    with raises(ValueError, f"{'dynamic' if name == 'uniform' else name} routing has no use for activations", "amend"):
        ROUTINGS[name](VOTES, activations=ONES)
    with raises(ValueError, "amend multiplies couplings by child activations", "give activations"):
        ROUTINGS[name](VOTES, amend=True)
    with raises(ValueError, "activations must have shape (B, I) = (2, 6)", "got (2, 6, 1)"):
        ROUTINGS[name](VOTES, amend=True, activations=ONES.unsqueeze(-1))
    votes = DenseVotes(Capsules(torch.zeros(2, 6, 2), ONES), torch.zeros(6, 3, 2, 4))
    with raises(ValueError, "activations are already part of the votes", "leave them out of the call"):
        ROUTINGS[name](votes, amend=True, activations=ONES)


@pytest.mark.parametrize("name", COUPLING)
def test_partial(name):
    for wrong in (0.0, 1.5, -0.1, True, "half", float("nan")):
        with raises(ValueError, "partial must be the probability in (0, 1]", "boolean", f"got {wrong!r}"):
            ROUTINGS[name](VOTES, partial=wrong)
    with raises(ValueError, "partial must have shape (J,) = (3,)", "got (2,)"):
        ROUTINGS[name](VOTES, partial=torch.ones(2, dtype=torch.bool))
    with raises(TypeError, "partial must be a boolean tensor", "got torch.float32", ".bool()"):
        ROUTINGS[name](VOTES, partial=torch.ones(3))


@pytest.mark.parametrize(
    ("name", "option"),
    [("dynamic", "squash_k"), ("uniform", "squash_k"), ("kmeans", "squash_k"), ("kmeans", "inverse_temperature"),
     ("em", "inverse_temperature"), ("entropy", "alpha"), ("em", "eps_var"), ("em", "lambda_schedule"),
     ("attention", "squash_k"), ("attention", "eps"), ("max_min", "squash_k"), ("heinsen", "eps_var"),
     ("vb", "alpha0"), ("vb", "kappa0"), ("vb", "psi0"), ("vb", "nu0")],
)  # fmt: skip
def test_positive_numbers(name, option):
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with raises(ValueError, f"{option} must be a positive finite number, got {wrong}"):
            ROUTINGS[name](VOTES, **{option: wrong})
    for wrong in (True, torch.tensor(1.0)):
        with raises(TypeError, f"{option} must be a positive number, got {wrong!r}"):
            ROUTINGS[name](VOTES, **{option: wrong})


def test_kmeans():
    with raises(ValueError, "metric must be one of 'dot', 'euclidean'", "'euclid'", "did you mean 'euclidean'?"):
        kmeans_routing(VOTES, metric="euclid")
    with raises(ValueError, "hard assignment is the limit of infinite inverse_temperature", "leave out", "2.0"):
        kmeans_routing(VOTES, hard=True, inverse_temperature=2.0)
    with raises(ValueError, "num_iterations must be at least 0, got -1"):
        kmeans_routing(VOTES, num_iterations=-1)


def test_entropy():
    with raises(ValueError, "alpha needs one number for each of the 3 iterations, got 2"):
        entropy_routing(VOTES, alpha=[0.2, 0.1])
    with raises(ValueError, "alpha must be a positive finite number, got 0"):
        entropy_routing(VOTES, alpha=[0.2, 0.1, 0])


# Those that weigh children by their activations, and what each learns


@pytest.mark.parametrize("name", list(WEIGHING))
def test_activations_are_needed(name):
    given = {
        option: 0.0 for option, (_, owners) in OWN_OPTIONS.items() if option.startswith("beta") and name in owners
    } | ({"beta_ignore": 0.0} if name == "heinsen" else {})
    with raises(ValueError, "outing weighs children by their activations", "give activations (B, I)"):
        WEIGHING[name](VOTES, **given)
    with raises(ValueError, "activations must have shape (B, I) = (2, 6)", "got (2, 3)"):
        WEIGHING[name](VOTES, torch.ones(2, 3), **given)
    with raises(TypeError, "activations has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        WEIGHING[name](VOTES, ONES.double(), **given)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("vb", "beta_a"),
        ("vb", "beta_u"),
        ("heinsen", "beta_use"),
        ("heinsen", "beta_ignore"),
        ("self_attention", "bias"),
    ],
)
def test_what_is_learned(name, option):
    with raises(ValueError, f"{option} must be a number", "one per parent type", "(3,)" if name == "vb" else "(6, 3)"):
        ROUTINGS[name](VOTES, **{option: torch.zeros(4)} if name == "vb" else {option: torch.zeros(5, 3)})
    with raises(TypeError, f"{option} has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        ROUTINGS[name](VOTES, **{option: torch.zeros(3, dtype=torch.float64)})


def test_vb_and_attention():
    with raises(ValueError, "nu0 must be more than D - 1 = 3 for votes of 4 entries, got 3"):
        vb(VOTES, nu0=3.0)
    with raises(ValueError, "scale must have shape (D,) = (4,)", "got (3,)"):
        attention_routing(VOTES, scale=torch.zeros(3))
    with raises(TypeError, "shift has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        attention_routing(VOTES, shift=torch.zeros(4, dtype=torch.float64))


def test_em():
    with raises(ValueError, "EM routing weighs children by their activations", "give activations (B, I), ones if"):
        em_routing(VOTES, **BETAS)
    with raises(TypeError, "beta_a"):
        em_routing(VOTES, ONES)
    with raises(ValueError, "activations must have shape (B, I) = (2, 6)", "got (2, 3)"):
        em(VOTES, torch.ones(2, 3))
    with raises(TypeError, "activations has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        em(VOTES, ONES.double())
    with raises(ValueError, "beta_a must be a number or one per parent type, (J,) = (3,)", "got (4,)"):
        em(VOTES, beta_a=torch.zeros(4))
    with raises(TypeError, "beta_u has dtype torch.float64 but votes has torch.float32", ".to(dtype)"):
        em(VOTES, beta_u=torch.zeros(3, dtype=torch.float64))
    with raises(ValueError, "cost_scale must be one of 'mass', 'paper'", "got 'masses'", "did you mean 'mass'?"):
        em(VOTES, cost_scale="masses")
    with raises(ValueError, "activation must be one of 'mdl', 'mixing', 'entropy'", "got 'mix'"):
        em(VOTES, activation="mix")
    with raises(ValueError, "lambda_schedule needs one number for each of the 3 iterations, got 2"):
        em(VOTES, lambda_schedule=[0.1, 0.2])
    with raises(ValueError, "lambda_schedule must be a positive finite number, got -1"):
        em(VOTES, lambda_schedule=lambda iteration: -1)
    votes = DenseVotes(Capsules(torch.zeros(2, 6, 2), ONES), torch.zeros(6, 3, 2, 4))
    with raises(ValueError, "activations are already part of the votes", "leave them out of the call"):
        em(votes)


# Backends


def test_backends():
    with raises(ValueError, "backend must be one of", "got 'gpu'"), use_backend("gpu"):
        pass
    with raises(ValueError, "backend must be one of 'fused', 'triton', 'chunked', 'reference'", "got 'auto'"):
        why_not("auto", dynamic_routing, VOTES)
    votes = DenseVotes(torch.zeros(2, 3, 4), torch.zeros(3, 5, 4, 6))
    with raises(ValueError, "backend 'fused' does not take this problem: its kernel has soft couplings only", "'auto'"):
        kmeans_routing(votes, hard=True, backend="fused")
    with raises(ValueError, "votes must have shape"):
        plan(dynamic_routing, torch.zeros(3))


# Descriptions


def test_children():
    weight = torch.zeros(6, 3, 2, 4)
    with raises(ValueError, "poses must have 3 axes", "got shape (2, 6)"):
        DenseVotes(torch.zeros(2, 6), weight)
    with raises(TypeError, "poses must be floating point", "got torch.int64", ".float()"):
        DenseVotes(torch.zeros(2, 6, 2, dtype=torch.long), weight)
    with raises(TypeError, "poses must be a torch.Tensor", "got list"):
        DenseVotes([[1.0]], weight)
    with raises(ValueError, "activations must have the shape of poses without the last axis, (2, 6)", "got (2, 5)"):
        DenseVotes(Capsules(torch.zeros(2, 6, 2), torch.zeros(2, 5)), weight)
    for describe in (ConvVotes, ClassVotes):
        with raises(ValueError, "a feature map of poses must have shape (B, H, W, C, K) or (B, T, C, K)", "(2, 6, 2)"):
            describe(torch.zeros(2, 6, 2), weight)


def test_dense_weight():
    poses = torch.zeros(2, 6, 4)
    with raises(ValueError, "weight must have shape (I, J, K, D) = (6, 3, 4, 5)", "got (7, 3, 4, 5)"):
        DenseVotes(poses, torch.zeros(7, 3, 4, 5))
    with raises(ValueError, "full weight must have shape (I, J, K, D)", "got (3, 4, 5)"):
        DenseVotes(poses, torch.zeros(3, 4, 5))
    with raises(ValueError, "shared weight must have shape (J, K, D)", "got (6, 3, 4, 5)"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5), sharing="shared")
    with raises(ValueError, "weight must have shape (J, K, D) = (3, 4, 5)", "got (3, 2, 5)"):
        DenseVotes(poses, torch.zeros(3, 2, 5), sharing="shared")
    with raises(TypeError, "weight has dtype torch.float64 but poses has torch.float32", ".to(dtype)"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5, dtype=torch.float64))
    with raises(TypeError, "full weights are one tensor, got tuple"):
        DenseVotes(poses, (torch.zeros(6, 4, 2), torch.zeros(3, 2, 5)))
    with raises(ValueError, "sharing must be one of 'full', 'shared', 'factorised'", "did you mean 'factorised'?"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5), sharing="factorized")
    with raises(ValueError, "pose must be one of 'vector', 'matrix'", "got 'matrices'"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5), pose="matrices")
    with raises(ValueError, "bias must have shape (I, J, D) = (6, 3, 5)", "got (3, 5)"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5), bias=torch.zeros(3, 5))


def test_factorised_weight():
    poses = torch.zeros(2, 6, 4)
    with raises(TypeError, "factorised weights are a pair (one factor per child, one per parent)"):
        DenseVotes(poses, torch.zeros(6, 3, 4, 5), sharing="factorised")
    with raises(ValueError, "child factor must have shape (I, K, K') = (6, 4, 2)", "got (5, 4, 2)"):
        DenseVotes(poses, (torch.zeros(5, 4, 2), torch.zeros(3, 2, 5)), sharing="factorised")
    with raises(ValueError, "weight must have shape (J, K, D) = (3, 2, 5)", "got (3, 4, 5)"):
        DenseVotes(poses, (torch.zeros(6, 4, 2), torch.zeros(3, 4, 5)), sharing="factorised")
    with raises(TypeError, "child factor has dtype torch.float64 but poses has torch.float32", ".to(dtype)"):
        DenseVotes(poses, (torch.zeros(6, 4, 2, dtype=torch.float64), torch.zeros(3, 2, 5)), sharing="factorised")


def test_matrix_poses():
    with raises(ValueError, "a matrix pose needs a square number of entries such as 16 (4 x 4)", "got 5"):
        DenseVotes(torch.zeros(2, 6, 5), torch.zeros(6, 3, 2, 2), pose="matrix")
    with raises(ValueError, "matrix poses of 4 entries need 2 x 2 weights", "got 2 x 3"):
        DenseVotes(torch.zeros(2, 6, 4), torch.zeros(6, 3, 2, 3), pose="matrix")


def test_convolution():
    poses, weight = torch.zeros(2, 6, 5, 2, 3), torch.zeros(3, 2, 2, 4, 3, 3)
    with raises(ValueError, "a window of (3, 2) does not fit into a map of (2, 5)", "use a smaller kernel or"):
        ConvVotes(poses[:, :2], weight)
    with raises(ValueError, "shared weights do not show the kernel size", "give kernel_size"):
        ConvVotes(poses, torch.zeros(4, 3, 3), sharing="shared")
    with raises(ValueError, "stride must be a positive integer or 2 of them", "got 0"):
        ConvVotes(poses, weight, stride=0)
    with raises(ValueError, "kernel_size must be a positive integer or 2 of them", "got (3, 2, 1)"):
        ConvVotes(poses, weight, kernel_size=(3, 2, 1))
    with raises(ValueError, "weight must have shape (kernel..., C, J, K, D) = (3, 3, 2, 4, 3, 3)", "got (3, 2, 2, 4, "):
        ConvVotes(poses, weight, kernel_size=3)
    with raises(ValueError, "full weight must have shape (kernel..., C, J, K, D)", "got (3, 2, 4, 3, 3)"):
        ConvVotes(poses, torch.zeros(3, 2, 4, 3, 3))
    with raises(ValueError, "mask must have shape of positions or of children = (2, 6, 5, 2)", "got (2, 6)"):
        ConvVotes(poses, weight, mask=torch.ones(2, 6, dtype=torch.bool))
    with raises(ValueError, "window_mask must have shape (B, *positions) = (2, 4, 4)", "got (2, 6, 5)"):
        ConvVotes(poses, weight, window_mask=torch.ones(2, 6, 5, dtype=torch.bool))
    with raises(TypeError, "window_mask must be a boolean tensor", "got torch.float32", ".bool()"):
        ConvVotes(poses, weight, window_mask=torch.ones(2, 4, 4))
    for wrong in (None, [weight, weight]):
        with raises(TypeError, "full weights are one tensor", f"got {type(wrong).__name__}"):
            ConvVotes(poses, wrong)
    with raises(TypeError, "factorised weights are a pair"):
        ConvVotes(poses, weight, sharing="factorised")
    with raises(ValueError, "sharing must be one of 'full', 'shared', 'factorised'", "got 'ful'"):
        ConvVotes(poses, weight, sharing="ful")


def test_class_votes():
    with raises(ValueError, "weight must have shape (C, J, K, D) = (2, 4, 3, 3)", "got (5, 4, 3, 3)"):
        ClassVotes(torch.zeros(2, 6, 5, 2, 3), torch.zeros(5, 4, 3, 3))
    with raises(ValueError, "coordinate addition needs larger votes than 1", "coordinates=False"):
        ClassVotes(torch.zeros(2, 6, 5, 2, 3), torch.zeros(2, 4, 3, 1))
    ClassVotes(torch.zeros(2, 6, 5, 2, 3), torch.zeros(2, 4, 3, 1), coordinates=False)
