"""Bayesian mixtures on plain data: scikit-learn, the bound, the relative among the routings, degenerate data."""

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture

from torchcaps.clustering import bayesian_gmm
from torchcaps.routing import vb_routing


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def blobs(num_clusters: int = 3, per_cluster: int = 40, size: int = 3) -> torch.Tensor:
    return 3.0 * normal(num_clusters, size).repeat_interleave(per_cluster, 0) + normal(
        num_clusters * per_cluster, size, seed=1
    )


PRIOR = {"alpha0": 0.7, "kappa0": 0.5, "psi0": 2.0, "nu0": 6.5}


@pytest.mark.parametrize("num_iterations", [1, 5, 50])
def test_equals_scikit_learn_from_the_same_start(num_iterations):
    data, start = blobs(), normal(120, 4, seed=9).softmax(1)
    ours = bayesian_gmm(data, initial_responsibilities=start, num_iterations=num_iterations, tolerance=None, **PRIOR)
    oracle = BayesianGaussianMixture(
        n_components=4, covariance_type="diag", reg_covar=0.0,
        weight_concentration_prior_type="dirichlet_distribution", weight_concentration_prior=PRIOR["alpha0"],
        mean_precision_prior=PRIOR["kappa0"], mean_prior=np.zeros(3), degrees_of_freedom_prior=PRIOR["nu0"],
        covariance_prior=np.full(3, PRIOR["psi0"]),
    )  # fmt: skip
    oracle._check_parameters(data.numpy())
    oracle._initialize(data.numpy(), start.numpy())
    for _ in range(num_iterations):
        oracle._m_step(data.numpy(), oracle._e_step(data.numpy())[1])
    np.testing.assert_allclose(ours.centres, oracle.means_, rtol=1e-8, atol=1e-10)
    concentration = oracle.weight_concentration_
    np.testing.assert_allclose(ours.weights, concentration / concentration.sum(), rtol=1e-8)
    np.testing.assert_allclose(ours.covariances, oracle.covariances_, rtol=1e-8)
    np.testing.assert_allclose(ours.responsibilities, np.exp(oracle._e_step(data.numpy())[1]), rtol=1e-6, atol=1e-10)


def test_the_bound_never_falls():
    objective = bayesian_gmm(
        blobs(), initial_responsibilities=normal(120, 5, seed=2).softmax(1), num_iterations=60, tolerance=None
    ).objective
    assert (objective.diff() <= 1e-9 * objective.abs().max()).all()
    assert objective[0] - objective[-1] > 1


def test_it_takes_the_steps_of_variational_routing():
    data, logits = blobs(), normal(120, 4, seed=3)
    ours = bayesian_gmm(data, initial_responsibilities=logits.softmax(1), num_iterations=3, tolerance=None)
    votes, ones = data[None, :, None].expand(-1, -1, 4, -1), torch.ones(1, 120, dtype=torch.float64)
    options = {"num_iterations": 4, "beta_a": 0.0, "beta_u": 0.0, "initial_logits": logits[None]}
    routed = vb_routing(votes, ones, return_trace=True, **options)
    torch.testing.assert_close(ours.centres, routed.capsules.poses[0])
    objective = torch.stack([step.objective[0] for step in routed.trace])
    torch.testing.assert_close(ours.objective.diff(), objective.diff())


def test_components_that_are_not_needed_stay_empty():
    result = bayesian_gmm(
        blobs(num_clusters=2, per_cluster=100), 6, alpha0=1e-3, num_iterations=500, generator=torch.Generator()
    )
    assert (result.weights > 0.05).sum() == 2


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e6])
def test_degenerate_data_give_finite_mixtures(scale):
    result = bayesian_gmm(
        scale * normal(7, 2).float(), initial_centres=torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 9.0]])
    )
    assert all(value.isfinite().all() for value in result[:5])


def test_an_absurd_prior_is_refused():
    with pytest.raises(ValueError, match=r"nu0 must be more than d - 1 = 2 for data of size 3, got 1.5"):
        bayesian_gmm(normal(9, 3), 2, nu0=1.5)
