"""Gaussian mixtures on plain data: oracles, objectives, limits, degenerate data, messages."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from torchcaps.clustering import gmm, kmeans

KINDS = {"full": {}, "diagonal": {}, "given": {"sigma": 0.7}}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def blobs(num_clusters: int, per_cluster: int, size: int, seed: int) -> torch.Tensor:
    centres = 4.0 * normal(num_clusters, size, seed=seed)
    mix = normal(size, size, seed=seed + 2)
    noise = normal(num_clusters * per_cluster, size, seed=seed + 1) @ mix
    return centres.repeat_interleave(per_cluster, 0) + noise


def fit_scikit_learn(data, responsibilities, kind, eps_var, num_iterations):
    """M-step from the responsibilities in plain numpy, then scikit-learn's own iterations."""
    mass = responsibilities.sum(0)
    means = responsibilities.T @ data / mass[:, None]
    precisions = []
    for j, mean in enumerate(means):
        offsets = data - mean
        scatter = (responsibilities[:, j, None] * offsets).T @ offsets / mass[j]
        scatter = scatter + eps_var * np.eye(data.shape[1])
        precisions.append(np.linalg.inv(scatter) if kind == "full" else 1 / np.diag(scatter))
    oracle = GaussianMixture(
        len(mass),
        covariance_type={"full": "full", "diagonal": "diag"}[kind],
        reg_covar=eps_var,
        tol=0.0,
        max_iter=num_iterations,
        weights_init=mass / len(data),
        means_init=means,
        precisions_init=np.stack(precisions),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # tol = 0 never converges
        return oracle.fit(data)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("num_iterations", [1, 2, 7])
@pytest.mark.parametrize(("size", "eps_var"), [(1, 1e-6), (3, 1e-6), (5, 0.1)])
def test_equals_scikit_learn_from_the_same_start(kind, num_iterations, size, eps_var):
    data = blobs(3, 40, size, seed=size)
    start = normal(120, 3, seed=9).softmax(1)
    ours = gmm(
        data,
        initial_responsibilities=start,
        covariance=kind,
        eps_var=eps_var,
        num_iterations=num_iterations,
        tolerance=None,
    )
    oracle = fit_scikit_learn(data.numpy(), start.numpy(), kind, eps_var, num_iterations)
    np.testing.assert_allclose(ours.weights.numpy(), oracle.weights_, rtol=1e-8)
    np.testing.assert_allclose(ours.centres.numpy(), oracle.means_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.covariances.numpy(), oracle.covariances_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.responsibilities.numpy(), oracle.predict_proba(data.numpy()), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(ours.objective[-1].item(), -oracle.score(data.numpy()) * 120, rtol=1e-10)


def test_given_sigma_equals_the_formulas_written_as_loops():
    data, start, sigma = normal(8, 2).numpy(), normal(8, 3, seed=1).softmax(1).numpy(), 0.6
    ours = gmm(
        torch.tensor(data),
        initial_responsibilities=torch.tensor(start),
        covariance="given",
        sigma=sigma,
        num_iterations=2,
        tolerance=None,
    )
    responsibilities, objective = start, []
    for _ in range(3):
        weights = [responsibilities[:, j].sum() / 8 for j in range(3)]
        means = [responsibilities[:, j] @ data / (8 * weights[j]) for j in range(3)]
        joint = np.array(
            [
                [
                    weights[j] * np.exp(-((x - means[j]) ** 2).sum() / (2 * sigma**2)) / (2 * np.pi * sigma**2)
                    for j in range(3)
                ]
                for x in data
            ]
        )
        objective.append(-np.log(joint.sum(1)).sum())
        responsibilities = joint / joint.sum(1, keepdims=True)
    np.testing.assert_allclose(ours.weights.numpy(), weights, rtol=1e-12)
    np.testing.assert_allclose(ours.centres.numpy(), means, rtol=1e-11)
    np.testing.assert_allclose(ours.responsibilities.numpy(), responsibilities, rtol=1e-11)
    np.testing.assert_allclose(ours.objective.numpy(), objective, rtol=1e-12)
    assert (ours.covariances == sigma**2).all()


@pytest.mark.parametrize("seed", range(5))
def test_small_sigma_gives_kmeans(seed):
    data = blobs(3, 15, 2, seed)
    start = data[[0, 15, 30]]
    options = {"initial_centres": start, "num_iterations": 6, "tolerance": None}
    hard = kmeans(data, metric="euclidean", hard=True, **options)
    gaps = []
    for sigma in (3.0, 1e-3, 1e-90):
        mixture = gmm(data, covariance="given", sigma=sigma, **options)
        gaps.append((mixture.centres - hard.centres).abs().max().item())
    assert gaps[0] > 1e-3
    assert gaps[1] < 1e-10
    assert gaps[2] < 1e-10
    assert torch.equal(mixture.assignments, hard.assignments)
    torch.testing.assert_close(mixture.weights, hard.responsibilities.mean(0))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_points=st.integers(1, 40),
    num_components=st.integers(1, 4),
    size=st.integers(1, 4),
    sigma=st.sampled_from([0.05, 0.5, 3.0]),
)
def test_given_objective_never_increases(seed, num_points, num_components, size, sigma):
    data, start = normal(num_points, size, seed=seed), normal(num_components, size, seed=seed + 1)
    result = gmm(data, initial_centres=start, covariance="given", sigma=sigma, num_iterations=8, tolerance=None)
    assert (result.objective.diff() <= 1e-11 * (1 + result.objective.abs().max())).all(), result.objective


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_points=st.integers(30, 80),
    num_components=st.integers(1, 3),
    size=st.integers(1, 3),
    kind=st.sampled_from(["full", "diagonal"]),
)
def test_learned_objective_never_increases_while_variances_are_large(seed, num_points, num_components, size, kind):
    data, start = normal(num_points, size, seed=seed), normal(num_points, num_components, seed=seed + 1)
    result = gmm(
        data,
        initial_responsibilities=start.softmax(1),
        covariance=kind,
        eps_var=1e-12,
        num_iterations=10,
        tolerance=None,
    )
    variances = torch.linalg.eigvalsh(result.covariances) if kind == "full" else result.covariances
    assume(variances.min() > 1e-4)
    assert (result.objective.diff() <= 1e-8 * (1 + result.objective.abs().max())).all(), result.objective


def test_dropped_mixing_weights_would_be_caught():
    """An E-step without log pi_j is a different algorithm: the oracle test tells them apart."""
    data = torch.cat([normal(90, 1), 2.0 + normal(10, 1, seed=1)])
    start = torch.nn.functional.one_hot(torch.arange(100) // 90, 2).double()
    right = gmm(data, initial_responsibilities=start, covariance="given", sigma=1.0, num_iterations=0)
    densities = torch.exp(-0.5 * (data - right.centres.T).square())
    wrong = densities / densities.sum(1, keepdim=True)
    assert (wrong - right.responsibilities).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_start_from_centres_has_equal_weights_and_the_scatter_around_the_nearest(kind):
    data, centres = blobs(2, 20, 3, seed=3), torch.zeros(2, 3, dtype=torch.float64)
    centres[1] = 100.0
    result = gmm(data, initial_centres=centres, covariance=kind, num_iterations=0, **KINDS[kind])
    scatter = data.T @ data / 40
    expected = {
        "full": scatter + 1e-6 * torch.eye(3, dtype=torch.float64),
        "diagonal": scatter.diagonal() + 1e-6,
        "given": torch.full((3,), 0.49, dtype=torch.float64),
    }[kind]
    torch.testing.assert_close(result.weights, torch.full((2,), 0.5, dtype=torch.float64))
    assert torch.equal(result.centres, centres)
    torch.testing.assert_close(result.covariances, torch.stack([expected, expected]))


def test_full_covariance_does_not_depend_on_the_axes():
    data, start = blobs(3, 30, 4, seed=2), normal(90, 3).softmax(1)
    rotation, _ = torch.linalg.qr(normal(4, 4, seed=8))
    options = {"initial_responsibilities": start, "num_iterations": 10, "tolerance": None}
    plain, turned = gmm(data, **options), gmm(data @ rotation, **options)
    torch.testing.assert_close(plain.centres @ rotation, turned.centres, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(plain.objective, turned.objective)


@pytest.mark.parametrize("kind", KINDS)
def test_a_component_without_mass_keeps_its_centre_and_covariance(kind):
    data = normal(20, 2)
    start = torch.tensor([[0.0, 0.0], [1e4, 1e4]], dtype=torch.float64)
    options = {"covariance": kind, "tolerance": None, **KINDS[kind]}
    first = gmm(data, initial_centres=start, num_iterations=0, **options)
    last = gmm(data, initial_centres=start, num_iterations=4, **options)
    assert torch.equal(last.centres[1], start[1])
    assert torch.equal(last.covariances[1], first.covariances[1])
    assert last.weights.tolist() == [1.0, 0.0]
    torch.testing.assert_close(last.centres[0], data.mean(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "data",
    [
        torch.tensor([[2.0, 3.0]]),
        torch.zeros(5, 2),
        torch.full((5, 2), 7.0),
        1e4 * torch.arange(9.0)[:, None].expand(9, 2),
        1e15 * normal(9, 2),
        1e15 * torch.arange(9.0)[:, None].expand(9, 2),
        1e-20 * normal(9, 2),
        normal(3, 8),
    ],
    ids=["one point", "zeros", "equal", "large on a line", "huge", "huge on a line", "tiny", "few of many"],
)
def test_degenerate_data_stay_finite(data, dtype, kind):
    generator = torch.Generator().manual_seed(0)
    data = data.to(dtype)
    result = gmm(data, min(3, len(data)), covariance=kind, generator=generator, **KINDS[kind])
    for tensor in (result.weights, result.centres, result.covariances, result.responsibilities):
        assert torch.isfinite(tensor).all(), tensor
    assert torch.isfinite(result.objective).all()
    torch.testing.assert_close(result.responsibilities.sum(1), torch.ones(len(data), dtype=dtype))


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_plus_plus_start_finds_separate_groups(kind):
    data = torch.cat([normal(50, 2), 20.0 + 2.0 * normal(100, 2, seed=1)])
    for seed in range(5):
        result = gmm(data, 2, covariance=kind, generator=torch.Generator().manual_seed(seed))
        assert result.converged
        torch.testing.assert_close(result.weights.sort().values, torch.tensor([1 / 3, 2 / 3]).double())
        again = gmm(data, 2, covariance=kind, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(again.centres, result.centres)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(dtype, kind):
    data = normal(30, 2, dtype=dtype)
    options = {"covariance": kind, "num_iterations": 3, **KINDS[kind]}
    result = gmm(data, initial_centres=data[:2], **options)
    expected = gmm(data.double(), initial_centres=data[:2].double(), **options)
    assert result.centres.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(result.centres.double(), expected.centres, rtol=1e-3, atol=1e-3)


DATA = normal(6, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((DATA.int(), 1), {}, TypeError, "data must be floating point, got torch.int32"),
        ((DATA,), {}, ValueError, "exactly one of num_components, initial_centres"),
        ((DATA, 9), {}, ValueError, r"num_components must be at most the number of data points \(6\), got 9"),
        ((DATA, 2), {"covariance": "diag"}, ValueError, "covariance must be one of.*did you mean 'diagonal'"),
        ((DATA, 2), {"sigma": 1.0}, ValueError, 'sigma belongs to covariance="given".*leave it out'),
        ((DATA, 2), {"covariance": "given"}, ValueError, 'covariance="given" needs sigma'),
        (
            (DATA, 2),
            {"covariance": "given", "sigma": 1.0, "eps_var": 1.0},
            ValueError,
            "learns no variance, got eps_var=1.0",
        ),
        ((DATA, 2), {"covariance": "given", "sigma": -1.0}, ValueError, "sigma must be a positive"),
        (
            (DATA.float(), 2),
            {"covariance": "given", "sigma": 1e-30},
            ValueError,
            "representable in torch.float32.*float64",
        ),
        ((DATA, 2), {"eps_var": 0.0}, ValueError, "eps_var must be a positive finite number, got 0"),
    ],
)
def test_messages(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gmm(*arguments, **options)
