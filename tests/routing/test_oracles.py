"""Where a routing is known to equal something else: scikit-learn, another routing, a limit. Conditions are exact."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch.testing import assert_close

from support.algorithms import COUPLING, DESCRIPTIONS, competitors, conv_votes, describe, route
from support.cases import rand, randn, random_mask
from torchcaps.routing import dynamic_routing, em_routing, entropy_routing, kmeans_routing, uniform_routing
from torchcaps.routing.competition import KINDS

pytestmark = pytest.mark.usefixtures("on_reference")
EPS = 1e-5


def equal_votes(data: torch.Tensor, num_parents: int) -> torch.Tensor:
    """V_ij = x_i for all j, one example: (I, D) -> (1, I, J, D)."""
    return data[None, :, None].expand(1, -1, num_parents, -1)


def fit_mixture(data: np.ndarray, first_responsibilities: np.ndarray, num_steps: int):
    """M(R0) by its definition, then `num_steps` (E, M) steps of scikit-learn: means and weights."""
    mass = first_responsibilities.sum(0)
    means = first_responsibilities.T @ data / mass[:, None]
    variances = np.stack([r @ (data - m) ** 2 / r.sum() for r, m in zip(first_responsibilities.T, means)]) + EPS
    weights = mass / len(data)
    if num_steps == 0:
        return means, weights
    mixture = GaussianMixture(
        len(mass), covariance_type="diag", reg_covar=EPS, tol=0.0, max_iter=num_steps, init_params="random",
        weights_init=weights, means_init=means, precisions_init=1 / variances, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the steps are counted, not run to convergence
        mixture.fit(data)
    return mixture.means_, mixture.weights_


@pytest.mark.parametrize("num_iterations", [1, 2, 3, 6])
def test_em_mixing_is_a_gaussian_mixture(num_iterations):
    data, logits = randn(40, 3), randn(1, 40, 4)
    result = em_routing(
        equal_votes(data, 4), torch.ones(1, 40, dtype=torch.float64), beta_a=0.0, beta_u=0.0, activation="mixing",
        num_iterations=num_iterations, initial_logits=logits, eps_var=EPS, return_trace=True,
    )  # fmt: skip
    for step, found in enumerate(result.trace):
        means, weights = fit_mixture(data.numpy(), logits[0].softmax(-1).numpy(), step)
        assert_close(found.poses[0], torch.from_numpy(means), rtol=1e-9, atol=1e-11)
        assert_close(found.activations[0], torch.from_numpy(weights), rtol=1e-9, atol=1e-11)
    assert_close(result.capsules.poses, result.trace[-1].poses, rtol=0, atol=0)


def test_activations_are_repetitions():
    data, logits = randn(30, 2), randn(1, 30, 3)
    repetitions = torch.arange(30) % 3  # activations 0, 1/2 and 1
    result = em_routing(
        equal_votes(data, 3), (repetitions / 2).double()[None], beta_a=0.0, beta_u=0.0, activation="mixing",
        num_iterations=4, initial_logits=logits, eps_var=EPS,
    )  # fmt: skip
    responsibilities = logits[0].softmax(-1).repeat_interleave(repetitions, 0)
    means, weights = fit_mixture(data.repeat_interleave(repetitions, 0).numpy(), responsibilities.numpy(), 3)
    assert_close(result.capsules.poses[0], torch.from_numpy(means), rtol=1e-9, atol=1e-11)
    assert_close(result.capsules.activations[0], torch.from_numpy(weights), rtol=1e-9, atol=1e-11)


def test_kmeans_euclidean_hard_is_lloyd():
    data, logits = 2 * randn(60, 2), 3 * randn(1, 60, 4)
    result = kmeans_routing(
        equal_votes(data, 4), metric="euclidean", hard=True, num_iterations=5, initial_logits=logits, return_trace=True
    )
    start = logits[0].softmax(-1)
    centres = (start.T @ data / start.sum(0)[:, None]).numpy()
    assert_close(result.trace[0].poses[0], torch.from_numpy(centres))
    moved = False
    for step, found in enumerate(result.trace[1:], start=1):
        distances = torch.cdist(data, result.trace[step - 1].poses[0]).sort(-1).values
        assert (distances[:, 1] - distances[:, 0]).min() > 1e-6, "the oracle needs votes without ties"
        lloyd = KMeans(4, init=centres, n_init=1, max_iter=step, tol=0.0, algorithm="lloyd").fit(data.numpy())
        assert len(np.unique(lloyd.labels_)) == 4, "the oracle needs clusters with members"
        assert_close(found.poses[0], torch.from_numpy(lloyd.cluster_centers_), rtol=1e-10, atol=1e-12)
        moved |= not torch.equal(found.poses, result.trace[step - 1].poses) and step > 1
    assert moved, "Lloyd converged at once and shows nothing"


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_hard_parent_without_members_keeps_its_centre(metric):
    """All children prefer the first parent, whose votes agree."""
    votes = torch.cat([torch.ones(2, 6, 1, 3), 0.1 * torch.randn(2, 6, 1, 3)], 2).double()
    trace = kmeans_routing(votes, metric=metric, hard=True, return_trace=True).trace
    assert trace[0].poses.any()
    for step in trace[1:]:
        assert_close(step.coupling, torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2, 6, 2))
        assert torch.equal(step.poses[:, 1], trace[0].poses[:, 1])


def test_equal_votes_from_a_uniform_start_never_part():
    """Why the oracles above need initial logits."""
    votes = equal_votes(randn(20, 3), 4)
    for name in COUPLING:
        poses = route(name, votes, rand(1, 20)).capsules.poses
        if "hard" not in name:  # all children go to the first of equal parents
            assert_close(poses, poses[:, :1].expand_as(poses))
    poses = em_routing(votes, rand(1, 20), beta_a=0.0, beta_u=0.0).capsules.poses
    assert_close(poses, poses[:, :1].expand_as(poses))


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("kind", [*DESCRIPTIONS, "mask, logits"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_kmeans_dot_is_entropy_with_one_iteration_more(kind, competition, temperature):
    options = {"competition": competition, "return_trace": True}
    if kind == "mask, logits":
        votes = randn(2, 7, 3, 4)
        options |= {"mask": random_mask(2, 7), "initial_logits": randn(2, 7, 3)}
    else:
        votes = describe(kind)
    clusters = kmeans_routing(votes, inverse_temperature=temperature, num_iterations=4, **options)
    optimised = entropy_routing(votes, alpha=1 / temperature, num_iterations=5, **options)
    assert len(clusters.trace) == len(optimised.trace) == 5
    for ours, theirs in zip(clusters.trace, optimised.trace):
        assert_close(ours.coupling, theirs.coupling, rtol=1e-9, atol=1e-12)
        assert_close(ours.poses, theirs.poses, rtol=1e-9, atol=1e-12)
    assert_close(clusters.coupling, optimised.coupling, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 2.0, 5.0])
def test_transformation_absorbs_the_temperature(temperature):
    votes = randn(2, 9, 4, 3)
    hot = kmeans_routing(votes, inverse_temperature=temperature, squash_k=0.7, return_trace=True)
    scaled = kmeans_routing(temperature * votes, squash_k=0.7 * temperature**2, return_trace=True)
    assert_close(hot.coupling, scaled.coupling, rtol=1e-9, atol=1e-12)
    assert_close(hot.trace[-1].poses * temperature, scaled.trace[-1].poses, rtol=1e-9, atol=1e-12)
    assert_close(hot.capsules.poses, scaled.capsules.poses, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("competition", KINDS)
@pytest.mark.parametrize("kind", DESCRIPTIONS)
@pytest.mark.parametrize("leaky", [False, True])
def test_one_dynamic_iteration_is_uniform(kind, competition, leaky):
    votes = describe(kind)
    one = dynamic_routing(votes, num_iterations=1, competition=competition, leaky=leaky)
    uniform = uniform_routing(votes, competition=competition, leaky=leaky)
    assert torch.equal(one.capsules.poses, uniform.capsules.poses)
    assert torch.equal(one.coupling, uniform.coupling)


def without_updates(votes, **options):
    """Every routing before its first update of the couplings."""
    return {
        "dynamic": dynamic_routing(votes, num_iterations=1, **options),
        "kmeans": kmeans_routing(votes, num_iterations=0, **options),
        "kmeans euclidean": kmeans_routing(votes, num_iterations=0, metric="euclidean", **options),
        "entropy": entropy_routing(votes, num_iterations=1, **options),
        "em": em_routing(votes, num_iterations=1, beta_a=0.0, beta_u=0.0, **options),
    }


def test_without_updates_couplings_are_uniform_and_outputs_their_own():
    votes = describe("dense")
    formed, weights = votes.materialise(), votes.activations[..., None, None]
    results = without_updates(votes)
    for result in results.values():
        assert_close(result.coupling, torch.full((3, 7, 3), 1 / 3, dtype=torch.float64))
    sums = formed.sum(1) / 3
    lengths = sums.norm(dim=-1, keepdim=True)
    squashed = sums * lengths / (1 + lengths**2)
    mean = formed.mean(1)
    mean_lengths = mean.norm(dim=-1, keepdim=True)
    expected = {
        "dynamic": squashed,
        "kmeans": squashed,
        "kmeans euclidean": mean * mean_lengths / (1 + mean_lengths**2),
        "entropy": sums / (1 + lengths.amax(1, keepdim=True)),
        "em": (formed * weights).sum(1) / weights.sum(1),
    }
    for name, result in results.items():
        assert_close(result.capsules.poses, expected[name])


def test_with_updates_couplings_leave_the_uniform_start():
    votes = describe("dense")
    for name, result in {
        "dynamic": dynamic_routing(votes, num_iterations=2),
        "kmeans": kmeans_routing(votes, num_iterations=1),
        "entropy": entropy_routing(votes, num_iterations=2),
        "em": em_routing(votes, num_iterations=2, beta_a=0.0, beta_u=0.0),
    }.items():
        assert (result.coupling - 1 / 3).abs().max() > 1e-3, name


def test_first_couplings_count_the_parents_a_child_reaches():
    """The rows of 14 -> 6 (kernel 3, stride 2) are covered 1 1 2 1 2 1 2 1 2 1 2 1 1 0 times."""
    votes = conv_votes(spatial=(14,), kernel=(3,), stride=(2,), num_types=1, num_parents=3)
    covered = torch.tensor([1, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 0])
    assert torch.equal(votes.windows.children().flatten().bincount(minlength=14), covered)
    for result in without_updates(votes, competition="global").values():
        rows = competitors(result.coupling, votes, "global", 0.0)  # (B, I, positions * J)
        for child, times in enumerate(covered.tolist()):
            shares = rows[:, child][rows[:, child] > 0].view(2, -1)
            assert_close(shares, torch.full((2, 3 * times), 1 / max(1, 3 * times), dtype=torch.float64))
    for competition in ("window", "position"):
        for result in without_updates(votes, competition=competition).values():
            assert_close(result.coupling, torch.full_like(result.coupling, 1 / 3))


def test_leak_is_a_parent_with_zero_votes():
    """Its agreement is 0 for ever, so its logit stays where it started."""
    votes, mask = randn(2, 9, 3, 4), random_mask(2, 9)
    leaking = dynamic_routing(votes, leaky=True, num_iterations=4, mask=mask)
    with_orphanage = torch.cat([votes, torch.zeros_like(votes[:, :, :1])], 2)
    expected = dynamic_routing(with_orphanage, num_iterations=4, mask=mask)
    assert_close(leaking.coupling, expected.coupling[..., :3])
    assert_close(leaking.capsules.poses, expected.capsules.poses[:, :3])
    assert (leaking.coupling.sum(-1) < 1).all()
    assert_close(uniform_routing(votes, leaky=True).coupling, torch.full((2, 9, 3), 1 / 4, dtype=torch.float64))


@pytest.mark.parametrize("competition", ["window", "global"])
def test_each_child_has_one_leak(competition):
    """One more competitor in each softmax: per child if it competes globally, else per window."""
    votes = conv_votes(spatial=(7,), kernel=(3,), stride=(2,), num_types=1, num_parents=2)
    coupling = uniform_routing(votes, leaky=True, competition=competition).coupling
    times = torch.tensor([1, 1, 2, 1, 2, 1, 1]) if competition == "global" else torch.ones(7, dtype=torch.long)
    for position, children in enumerate(votes.windows.children()):
        shares = 1 / (2 * times[children] + 1).double()
        assert_close(coupling[0, position], shares[:, None].expand(3, 2))


@pytest.mark.parametrize("name", list(COUPLING))
def test_partial_is_routing_among_the_chosen(name):
    votes, chosen = randn(2, 8, 5, 3), torch.tensor([False, True, True, False, True])
    some = route(name, votes, partial=chosen)
    among = route(name, votes[:, :, chosen])
    assert_close(some.coupling[..., chosen], among.coupling)
    assert_close(some.capsules.poses[:, chosen], among.capsules.poses)
    assert not some.coupling[..., ~chosen].any()
    assert not some.capsules.poses[:, ~chosen].any()


def chosen_parents(probability: float) -> torch.Tensor:
    coupling = uniform_routing(randn(3, 4, 6, 2), partial=probability).coupling
    takes_part = coupling > 0
    assert torch.equal(takes_part, takes_part[:1, :1].expand_as(takes_part)), "one subset for the whole batch"
    return takes_part[0, 0]


def test_partial_draws_one_subset_for_the_batch():
    draws = torch.stack([chosen_parents(0.5) for _ in range(50)])
    assert draws.any(1).all(), "at least one parent takes part"
    assert len(draws.unique(dim=0)) > 10, "a new subset for each call"
    assert 0.4 < draws.double().mean() < 0.75
    assert chosen_parents(1.0).all()
    rare = torch.stack([chosen_parents(1e-6) for _ in range(30)])
    assert (rare.sum(1) == 1).all()
    assert rare.any(0).sum() > 1, "the parent that is kept is drawn, too"
