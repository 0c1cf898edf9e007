"""K-Means on plain data: oracles, objectives, degenerate data, messages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from torchcaps.clustering import kmeans


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def blobs(num_clusters: int, per_cluster: int, size: int, seed: int) -> torch.Tensor:
    centres = 4.0 * normal(num_clusters, size, seed=seed)
    return centres.repeat_interleave(per_cluster, 0) + normal(num_clusters * per_cluster, size, seed=seed + 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_clusters", "size"), [(1, 3), (3, 2), (5, 7)])
def test_hard_euclidean_equals_scikit_learn_from_the_same_start(seed, num_clusters, size):
    data = blobs(5, 20, size, seed)
    start = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:num_clusters]]
    ours = kmeans(data, initial_centres=start, metric="euclidean", hard=True, tolerance=0.0)
    oracle = KMeans(num_clusters, init=start.numpy(), n_init=1, tol=0, max_iter=100, algorithm="lloyd")
    oracle.fit(data.numpy())
    assert ours.converged
    np.testing.assert_allclose(ours.centres.numpy(), oracle.cluster_centers_, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ours.assignments.numpy(), oracle.labels_)
    np.testing.assert_allclose(ours.objective[-1].item(), oracle.inertia_, rtol=1e-10)


@pytest.mark.parametrize("num_iterations", [1, 2, 3])
def test_hard_euclidean_is_lloyd_step_by_step(num_iterations):
    data, centres = normal(40, 3), normal(4, 3, seed=5)
    ours = kmeans(
        data,
        initial_centres=centres,
        metric="euclidean",
        hard=True,
        num_iterations=num_iterations,
        tolerance=None,
    )
    points, expected = data.numpy(), centres.numpy().copy()
    for _ in range(num_iterations):
        labels = [int(np.argmin([((x - centre) ** 2).sum() for centre in expected])) for x in points]
        expected = np.stack([points[[label == j for label in labels]].mean(0) for j in range(4)])
    np.testing.assert_allclose(ours.centres.numpy(), expected, rtol=1e-12)
    assert len(ours.objective) == num_iterations + 1


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_soft_iterations_equal_the_formulas_written_as_loops(metric):
    data, centres, temperature = normal(7, 3).numpy(), normal(3, 3, seed=1).numpy(), 1.7
    ours = kmeans(
        torch.tensor(data),
        initial_centres=torch.tensor(centres),
        metric=metric,
        inverse_temperature=temperature,
        num_iterations=3,
        tolerance=None,
    )

    def distance(x, v):
        return -x @ v / np.sqrt(v @ v) if metric == "dot" else ((x - v) ** 2).sum()

    objective = []
    for iteration in range(4):
        terms = [[np.exp(-temperature * distance(x, v)) for v in centres] for x in data]
        objective.append(-sum(np.log(sum(row)) for row in terms) / temperature)
        couplings = np.array([[term / sum(row) for term in row] for row in terms])
        if iteration < 3:
            sums = np.array([sum(couplings[i, j] * data[i] for i in range(7)) for j in range(3)])
            centres = sums if metric == "dot" else sums / couplings.sum(0)[:, None]
    np.testing.assert_allclose(ours.centres.numpy(), centres, rtol=1e-11)
    np.testing.assert_allclose(ours.responsibilities.numpy(), couplings, rtol=1e-10)
    np.testing.assert_allclose(ours.objective.numpy(), objective, rtol=1e-11)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_points=st.integers(1, 30),
    num_clusters=st.integers(1, 5),
    size=st.integers(1, 5),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    metric=st.sampled_from(["dot", "euclidean"]),
    temperature=st.sampled_from([None, 0.1, 1.0, 20.0]),
)
def test_objective_never_increases(seed, num_points, num_clusters, size, scale, metric, temperature):
    data = scale * normal(num_points, size, seed=seed)
    start = scale * normal(num_clusters, size, seed=seed + 1)
    options = {"hard": True} if temperature is None else {"inverse_temperature": temperature}
    result = kmeans(data, initial_centres=start, metric=metric, num_iterations=8, tolerance=None, **options)
    slack = 1e-12 * (1 + result.objective.abs().max())
    assert (result.objective.diff() <= slack).all(), result.objective
    torch.testing.assert_close(result.responsibilities.sum(1), torch.ones(num_points, dtype=torch.float64))


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_objective_would_catch_a_softmax_over_points(metric):
    """The inequality above is not empty: couplings normalised over the wrong axis break it."""
    rises = 0
    for seed in range(20):
        data, centres = 3 * normal(12, 2, seed=seed), 3 * normal(3, 2, seed=seed + 100)
        before = kmeans(data, initial_centres=centres, metric=metric, num_iterations=0).objective[0]
        if metric == "dot":
            scores = data @ torch.nn.functional.normalize(centres, dim=1).T
        else:
            scores = -torch.cdist(data, centres).square()
        wrong = scores.softmax(0)
        after = kmeans(data, initial_centres=wrong.T @ data, metric=metric, num_iterations=0).objective[0]
        rises += bool(after > before + 1e-9)
    assert rises > 0


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_a_high_inverse_temperature_is_hard(metric):
    data, start = normal(30, 4), normal(3, 4, seed=1)
    hard = kmeans(data, initial_centres=start, metric=metric, hard=True, num_iterations=5, tolerance=None)
    soft = kmeans(data, initial_centres=start, metric=metric, inverse_temperature=1e6, num_iterations=5, tolerance=None)
    torch.testing.assert_close(soft.centres, hard.centres)
    torch.testing.assert_close(soft.objective, hard.objective)


def test_dot_centres_are_sums_and_their_length_does_not_matter():
    data, start = normal(20, 3), normal(4, 3, seed=1)
    first = kmeans(data, initial_centres=start, num_iterations=4, tolerance=None)
    second = kmeans(
        data,
        initial_centres=start * torch.tensor([[1e-3], [1.0], [7.0], [1e3]]),
        num_iterations=4,
        tolerance=None,
    )
    torch.testing.assert_close(first.centres, second.centres)
    torch.testing.assert_close(first.centres.sum(0), data.sum(0))


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_start_from_responsibilities(metric):
    data, couplings = normal(20, 3), normal(20, 4, seed=2).softmax(1)
    sums = couplings.T @ data
    start = sums if metric == "dot" else sums / couplings.sum(0)[:, None]
    first = kmeans(data, initial_responsibilities=couplings, metric=metric, num_iterations=0)
    torch.testing.assert_close(first.centres, start)
    torch.testing.assert_close(
        kmeans(data, initial_responsibilities=couplings, metric=metric).centres,
        kmeans(data, initial_centres=start, metric=metric).centres,
    )


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("options", [{"hard": True}, {"inverse_temperature": 1e4}])
def test_an_empty_cluster_keeps_its_centre(metric, options):
    data = torch.tensor([[1.0, 0.0], [2.0, 0.1], [3.0, -0.1]], dtype=torch.float64)
    start = torch.tensor([[1.0, 0.0], [-50.0, -60.0]], dtype=torch.float64)
    result = kmeans(data, initial_centres=start, metric=metric, num_iterations=3, **options)
    assert torch.equal(result.centres[1], start[1])
    assert result.assignments.tolist() == [0, 0, 0]
    torch.testing.assert_close(result.centres[0], data.sum(0) if metric == "dot" else data.mean(0))


def test_ties_go_to_the_lowest_index():
    data, start = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[9.0], [0.0], [0.0], [2.0]])
    options = {"metric": "euclidean", "hard": True, "tolerance": None}
    assert kmeans(data, initial_centres=start, num_iterations=0, **options).assignments.tolist() == [1, 1, 3]
    result = kmeans(data, initial_centres=start, num_iterations=1, **options)
    assert result.centres.flatten().tolist() == [9.0, 0.5, 0.0, 2.0]


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
@pytest.mark.parametrize("options", [{"hard": True}, {}, {"inverse_temperature": 1e30}])
@pytest.mark.parametrize(
    "data",
    [
        torch.tensor([[2.0, 3.0]]),
        torch.zeros(5, 2),
        torch.full((5, 2), 7.0),
        1e15 * normal(9, 2, dtype=torch.float32),
        1e-30 * normal(9, 2, dtype=torch.float32),
    ],
    ids=["one point", "zeros", "equal points", "huge", "tiny"],
)
def test_degenerate_data_stay_finite(data, metric, options):
    generator = torch.Generator().manual_seed(0)
    result = kmeans(data, min(3, len(data)), metric=metric, generator=generator, **options)
    for tensor in (result.centres, result.responsibilities, result.objective):
        assert torch.isfinite(tensor).all(), tensor
    torch.testing.assert_close(result.responsibilities.sum(1), torch.ones(len(data)))


def test_dot_directions_survive_lengths_whose_square_overflows():
    data = torch.tensor([[1e30, 0.0], [0.0, 1e30], [-1e30, 0.0]])
    result = kmeans(data, initial_centres=data[:2], hard=True)
    assert torch.isfinite(result.centres).all()
    assert result.assignments.tolist() == [0, 1, 1]


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_plus_plus_starts_are_data_points_one_in_each_far_group(metric):
    directions = torch.eye(4, dtype=torch.float64)
    data = (100 * directions).repeat_interleave(25, 0) + 0.01 * normal(100, 4)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        start = kmeans(data, 4, metric=metric, num_iterations=0, generator=generator).centres
        rows = [int((data == centre).all(1).nonzero().item()) for centre in start]
        assert sorted(row // 25 for row in rows) == [0, 1, 2, 3]


def test_plus_plus_draws_in_proportion_to_squared_distance():
    data = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    pairs = [
        tuple(kmeans(data, 2, metric="euclidean", num_iterations=0, generator=generator).centres.flatten().tolist())
        for _ in range(1500)
    ]
    from_zero = [second for first, second in pairs if first == 0.0]
    assert abs(len(from_zero) / 1500 - 1 / 3) < 0.04
    assert abs(from_zero.count(3.0) / len(from_zero) - 0.9) < 0.04  # 9 against 1; 0.75 if not squared
    assert 0.0 not in from_zero


def test_a_dot_start_never_draws_a_zero_vector():
    data = torch.cat([torch.zeros(50, 2), torch.eye(2)]).double()
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        start = kmeans(data, 2, num_iterations=0, generator=generator).centres
        torch.testing.assert_close(start.sum(0), torch.ones(2).double())


def test_same_generator_same_result_and_tolerance_ends_early():
    data = blobs(3, 30, 2, seed=1)
    runs = [kmeans(data, 3, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(runs[0].centres, runs[1].centres)
    assert runs[0].converged
    assert len(runs[0].objective) < 101
    cut = kmeans(data, 3, num_iterations=1, tolerance=None, generator=torch.Generator().manual_seed(7))
    assert not cut.converged


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_dtypes(dtype, metric):
    data = normal(12, 3, dtype=dtype)
    result = kmeans(data, initial_centres=data[:2], metric=metric)
    expected = kmeans(data.double(), initial_centres=data[:2].double(), metric=metric)
    assert result.centres.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(result.centres.double(), expected.centres, rtol=1e-2, atol=1e-2)


def test_result_is_frozen_and_carries_no_graph():
    data = normal(6, 2).requires_grad_()
    result = kmeans(data, 2)
    assert not result.centres.requires_grad
    with pytest.raises(AttributeError):
        result.converged = True


DATA = normal(6, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([[1.0]], 1), {}, TypeError, "data must be a torch.Tensor, got list"),
        ((DATA.long(), 1), {}, TypeError, "data must be floating point, got torch.int64"),
        ((DATA[0], 1), {}, ValueError, r"data must have shape \(n, d\).*got \(2,\)"),
        ((DATA[:0], 1), {}, ValueError, r"at least one row.*got \(0, 2\)"),
        ((DATA / 0, 1), {}, ValueError, "data must be finite, got NaN or Inf"),
        ((DATA,), {}, ValueError, "exactly one of num_clusters, initial_centres.*got none"),
        ((DATA, 2), {"initial_centres": DATA[:2]}, ValueError, "got num_clusters and initial_centres"),
        ((DATA, 7), {}, ValueError, r"at most the number of data points \(6\), got 7"),
        ((DATA, 0), {}, ValueError, "num_clusters must be at least 1, got 0"),
        ((DATA,), {"initial_centres": DATA[:, :1]}, ValueError, r"shape \(k, 2\).*got \(6, 1\)"),
        ((DATA,), {"initial_responsibilities": DATA[:2]}, ValueError, r"shape \(6, k\), got \(2, 2\)"),
        ((DATA,), {"initial_responsibilities": 2 * DATA.softmax(1)}, ValueError, "sum to 1 over each row"),
        (
            (DATA,),
            {"initial_responsibilities": torch.eye(2).repeat(6, 1)[::2]},
            ValueError,
            r"every column.*got none in \[1\]",
        ),
        (
            (DATA,),
            {"initial_centres": DATA[:2], "generator": torch.Generator()},
            ValueError,
            "generator has a use only in a k-means",
        ),
        ((DATA, 2), {"metric": "euclid"}, ValueError, "metric must be one of.*did you mean 'euclidean'"),
        ((DATA, 2), {"inverse_temperature": 0.0}, ValueError, "inverse_temperature must be a positive"),
        ((DATA.float(), 2), {"inverse_temperature": 1e50}, ValueError, "representable in torch.float32"),
        ((DATA, 2), {"inverse_temperature": 2.0, "hard": True}, ValueError, "leave one of them out"),
        ((DATA, 2), {"num_iterations": -1}, ValueError, "num_iterations must be at least 0, got -1"),
        ((DATA, 2), {"tolerance": -1.0}, ValueError, "tolerance must be 0 or more.*None runs all"),
    ],
)
def test_messages(arguments, options, error, message):
    with pytest.raises(error, match=message):
        kmeans(*arguments, **options)
