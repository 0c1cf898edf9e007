"""What each routing promises to descend, computed here from its definition, for random problems of every kind."""

import math
from itertools import pairwise

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from support.algorithms import competitors, conv_votes, of_competitors
from torchcaps.routing import dynamic_routing, em_routing, entropy_routing, kmeans_routing, vb_routing
from torchcaps.routing.competition import KINDS
from torchcaps.votes import Votes, as_votes

modest = settings(derandomize=True, max_examples=60, deadline=None)
competitions = st.sampled_from(KINDS)
iterations = st.integers(1, 6)


@st.composite
def problems(draw, scales=(0.01, 0.3, 1.0, 3.0, 10.0), least_children: int = 1) -> tuple[Votes, Tensor | None]:
    """Dense or convolutional votes with or without masks, and initial logits or None."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from(scales))
    masked = draw(st.booleans())
    kind = draw(st.sampled_from(["dense", "conv1d", "conv2d"]))
    if kind == "dense":
        sizes = draw(st.integers(least_children, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
        votes = scale * torch.randn(2, *sizes, dtype=torch.float64)
        mask = torch.rand(2, sizes[0]) < 0.7 if masked else None
        votes = as_votes(votes, mask=mask, activations=torch.rand(2, sizes[0], dtype=torch.float64))
    else:
        spatial, kernel, stride = ((7,), (3,), (2,)) if kind == "conv1d" else ((6, 4), (3, 2), (2, 1))
        stride = draw(st.sampled_from([stride, (1,) * len(stride)]))
        masks = {}
        if masked:
            output = [(size - k) // s + 1 for size, k, s in zip(spatial, kernel, stride)]
            masks = {"mask": torch.rand(2, *spatial, 2) < 0.7, "window_mask": torch.rand(2, *output) < 0.8}
        votes = conv_votes(
            spatial=spatial, kernel=kernel, stride=stride, scale=scale, num_parents=draw(st.integers(1, 4)), **masks
        )
    logits = torch.randn(votes.coupling_shape, dtype=torch.float64) if draw(st.booleans()) else None
    return votes, logits


def starts_elsewhere(votes: Votes, logits: Tensor | None, competition: str) -> bool:
    """Whether the first couplings, 1 / J each, are no shares of positions: nothing is promised for that step."""
    return competition == "position" and logits is None and votes.windows is not None


def weighted_sums(coupling: Tensor, formed: Tensor) -> Tensor:
    return (coupling.unsqueeze(-1) * formed).sum(-3)


def total(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


def unit(vectors: Tensor) -> Tensor:
    lengths = vectors.norm(dim=-1, keepdim=True)
    return torch.where(lengths > 0, vectors / lengths, 0.0)


def assert_not_above(new: Tensor, bound: Tensor, tolerance: float = 1e-10) -> None:
    assert (new <= bound + tolerance * (1 + bound.abs())).all(), f"rose by {(new - bound).max():.3e}"


# Dynamic routing: Phi


def phi(coupling: Tensor, formed: Tensor, squash_k: float) -> Tensor:
    lengths, root = weighted_sums(coupling, formed).norm(dim=-1), math.sqrt(squash_k)
    return -total(lengths - root * torch.arctan(lengths / root))


def divergence(new: Tensor, old: Tensor, whole: Tensor) -> Tensor:
    """sum_i KL(new_i || old_i) over rows (B, rows, parents) whose missing share of `whole` is the leak's."""

    def with_leak(rows: Tensor) -> Tensor:
        return torch.cat([rows, (whole - rows.sum(-1)).clamp_min(0).unsqueeze(-1)], -1)

    new, old = with_leak(new), with_leak(old)
    return total(torch.xlogy(new, new) - torch.xlogy(new, old.clamp_min(1e-300)))


@modest
@given(problems(), iterations, st.sampled_from([0.1, 0.5, 1.0, 3.0]), competitions, st.booleans(), st.booleans())
def test_phi_falls_by_at_least_the_divergence(problem, num_iterations, squash_k, competition, leaky, amend):
    votes, logits = problem
    trace = dynamic_routing(
        votes, num_iterations=num_iterations, squash_k=squash_k, leaky=leaky, amend=amend, competition=competition,
        initial_logits=logits, return_trace=True,
    ).trace  # fmt: skip
    formed = votes.materialise()
    # with activations in front, each child's divergence counts as much as its votes do
    share = of_competitors(votes.activations if amend else torch.ones_like(votes.activations), votes, competition)
    for step in trace:
        assert_close(step.objective, phi(step.coupling, formed, squash_k), rtol=1e-10, atol=1e-12)
    if starts_elsewhere(votes, logits, competition):
        trace = trace[1:]
    rows = [competitors(step.coupling, votes, competition, 0.0) for step in trace]
    if rows and not leaky:  # nothing leaks: the whole is what is there
        share = rows[0].sum(-1)
    for before, after, old, new in zip(trace, trace[1:], rows, rows[1:]):
        moved = divergence(new, old, share)
        assert (moved >= -1e-12).all()
        assert_not_above(after.objective, before.objective - moved)


def test_phi_falls_strictly():
    """The inequality above is not one between zeros."""
    trace = dynamic_routing(3 * torch.randn(2, 9, 4, 3, dtype=torch.float64), return_trace=True).trace
    moved = divergence(trace[1].coupling, trace[0].coupling, torch.ones(2, 9, dtype=torch.float64))
    assert (moved > 0.1).all()
    assert (trace[1].objective < trace[0].objective - 0.1).all()


@modest
@given(problems(), st.sampled_from([0.1, 0.5, 1.0, 3.0]))
def test_agreement_is_the_gradient_of_phi(problem, squash_k):
    votes, logits = problem
    step = dynamic_routing(
        votes, num_iterations=1, squash_k=squash_k, initial_logits=logits, return_trace=True
    ).trace[0]  # fmt: skip
    formed, coupling = votes.materialise(), step.coupling.clone().requires_grad_()
    phi(coupling, formed, squash_k).sum().backward()
    assert_close(-coupling.grad, (formed * step.poses.unsqueeze(-3)).sum(-1), rtol=1e-9, atol=1e-12)


# K-Means routing: L


def clustering_loss(
    votes: Votes, centres: Tensor, metric: str, temperature: float | None, competition: str, amend: bool
) -> Tensor:
    """L = -(1/T) sum_i ln sum_j exp(-T d), and its limit sum_i min_j d for T = None."""
    formed, centres = votes.materialise(), centres.unsqueeze(-3)
    distances = -(formed * unit(centres)).sum(-1) if metric == "dot" else (formed - centres).square().sum(-1)
    if (slot_mask := votes.slot_mask()) is not None:
        distances = distances.masked_fill(~slot_mask.unsqueeze(-1), math.inf)
    rows = competitors(distances, votes, competition, math.inf)
    losses = rows.amin(-1) if temperature is None else -(-temperature * rows).logsumexp(-1) / temperature
    if amend:
        losses = losses * of_competitors(votes.activations, votes, competition)
    return total(losses.masked_fill(rows.isinf().all(-1), 0.0))


@modest
@given(
    problems(),
    st.integers(0, 5),
    st.sampled_from(["dot", "euclidean"]),
    st.sampled_from([None, 0.2, 1.0, 5.0]),
    competitions,
    st.booleans(),
)
def test_clustering_loss_never_rises(problem, num_iterations, metric, temperature, competition, amend):
    votes, logits = problem
    options = {"hard": True} if temperature is None else {"inverse_temperature": temperature}
    trace = kmeans_routing(
        votes, num_iterations=num_iterations, metric=metric, competition=competition, initial_logits=logits,
        amend=amend, return_trace=True, **options,
    ).trace  # fmt: skip
    losses = [clustering_loss(votes, step.poses, metric, temperature, competition, amend) for step in trace]
    for step, loss in zip(trace, losses):
        assert_close(step.objective, loss, rtol=1e-9, atol=1e-10)
    for before, after in pairwise(losses):
        assert_not_above(after, before)


def test_clustering_loss_falls():
    for options in ({}, {"hard": True}):
        for metric in ("dot", "euclidean"):
            logits = torch.randn(1, 20, 3, dtype=torch.float64)
            votes = torch.randn(1, 20, 3, 2, dtype=torch.float64)
            trace = kmeans_routing(votes, metric=metric, initial_logits=logits, return_trace=True, **options).trace
            assert trace[-1].objective < trace[0].objective - 0.1


# Entropy routing: F


def free_energy(coupling: Tensor, formed: Tensor, directions: Tensor, alpha: float) -> Tensor:
    agreement = (formed * directions.unsqueeze(-3)).sum(-1)
    return total(alpha * torch.xlogy(coupling, coupling) - coupling * agreement)


@modest
@given(problems(), iterations, st.sampled_from([0.05, 0.1, 0.5, 2.0]), competitions, st.booleans())
def test_free_energy_never_rises_at_any_half_step(problem, num_iterations, alpha, competition, amend):
    votes, logits = problem
    trace = entropy_routing(
        votes, num_iterations=num_iterations, alpha=alpha, competition=competition, initial_logits=logits,
        amend=amend, return_trace=True,
    ).trace  # fmt: skip
    formed = votes.materialise()
    directions = [unit(weighted_sums(step.coupling, formed)) for step in trace]
    before = None
    for number, (step, direction) in enumerate(zip(trace, directions)):
        assert_close(step.poses, weighted_sums(step.coupling, formed), rtol=1e-10, atol=1e-12)
        if number > 0:  # new couplings, old directions
            half = free_energy(step.coupling, formed, directions[number - 1], alpha)
            if number > 1 or not starts_elsewhere(votes, logits, competition):
                assert_not_above(half, before)
            before = half
        now = free_energy(step.coupling, formed, direction, alpha)
        assert_close(step.objective, now, rtol=1e-9, atol=1e-10)
        if before is not None:  # new directions
            assert_not_above(now, before)
        before = now


# EM routing: the likelihood of a mixture, or its free energy where the E-step is tempered


def free_energy_of_em(
    votes: Votes, step, eps_var: float, temperature: float, competition: str
) -> tuple[Tensor, Tensor]:
    """-1/T sum_i a_i ln sum_j (a_j p_ij)^T with the variances of the step's own couplings, and those variances."""
    formed = votes.materialise()
    weights = (step.coupling * votes.slots(votes.activations).unsqueeze(-1)).unsqueeze(-1)
    mass = weights.sum(-3)
    deviations = (formed - step.poses.unsqueeze(-3)).square()
    variances = (weights * deviations).sum(-3) / mass.clamp_min(1e-8) + eps_var
    spread = variances.unsqueeze(-3)
    log_density = -0.5 * (deviations / spread + (2 * math.pi * spread).log()).sum(-1)
    logits = temperature * (log_density + step.activations.unsqueeze(-2).log())
    if (slot_mask := votes.slot_mask()) is not None:
        logits = logits.masked_fill(~slot_mask.unsqueeze(-1), -math.inf)
    rows = competitors(logits, votes, competition, -math.inf)
    reached = ~rows.isinf().all(-1)
    likelihood = rows.logsumexp(-1).masked_fill(~reached, 0.0)
    weight = of_competitors(votes.activations, votes, competition)
    return -total(weight * likelihood) / temperature, variances[mass.expand_as(variances) > 0.01]


@modest
@given(
    problems(scales=(0.3, 1.0, 3.0), least_children=6),
    st.integers(2, 4),
    st.sampled_from([1.0, 0.5, 1 / 16]),
    competitions,
    st.sampled_from([0.0, 0.1, 0.6]),
)
def test_mixing_free_energy_never_rises(problem, num_iterations, temperature, competition, damping):
    """Damped means still lie nearer to the best ones than the old means do."""
    votes, logits = problem
    eps_var = 1e-12
    trace = em_routing(
        votes, beta_a=0.0, beta_u=0.0, activation="mixing", eps_var=eps_var, num_iterations=num_iterations,
        inverse_temperature=temperature, competition=competition, damping=damping, initial_logits=logits,
        return_trace=True,
    ).trace  # fmt: skip
    steps = [free_energy_of_em(votes, step, eps_var, temperature, competition) for step in trace]
    # a parent that collapses onto one vote leaves the domain of the promise
    assume(all(variances.numel() and variances.min() > 1e-5 for _, variances in steps))
    assume(all((step.activations[step.activations > 0] > 1e-6).all() for step in trace))
    for step, (objective, _) in zip(trace, steps):
        assert_close(step.objective, objective, rtol=1e-8, atol=1e-8)
    for before, after in pairwise(trace):
        assert_not_above(after.objective, before.objective, tolerance=1e-6)  # eps_var / variance


def test_mixing_likelihood_rises():
    votes = torch.randn(2, 30, 3, 2, dtype=torch.float64)
    activations = torch.rand(2, 30, dtype=torch.float64)
    trace = em_routing(votes, activations, beta_a=0.0, beta_u=0.0, activation="mixing", return_trace=True).trace
    assert (trace[-1].objective < trace[0].objective - 0.1).all()


# Variational Bayes: the bound of the evidence, which is exact where windows compete


@modest
@given(problems(), iterations, st.sampled_from([0.3, 1.0, 4.0]), st.sampled_from([0.1, 1.0]))
def test_the_bound_of_the_evidence_never_falls(problem, num_iterations, alpha0, psi0):
    votes, logits = problem
    trace = vb_routing(
        votes, beta_a=0.0, beta_u=0.0, num_iterations=num_iterations, alpha0=alpha0, psi0=psi0, competition="window",
        initial_logits=logits, return_trace=True,
    ).trace  # fmt: skip
    for before, after in pairwise(trace):
        assert_not_above(after.objective, before.objective, tolerance=1e-9)


def test_the_bound_of_the_evidence_rises():
    votes = 3 * torch.randn(2, 30, 3, 2, dtype=torch.float64)
    trace = vb_routing(
        votes, torch.rand(2, 30, dtype=torch.float64), beta_a=0.0, beta_u=0.0, num_iterations=5, return_trace=True
    ).trace
    assert (trace[-1].objective < trace[0].objective - 0.1).all()
