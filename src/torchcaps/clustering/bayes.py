"""Gaussian mixtures on plain data with priors, by variational Bayes."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from torchcaps.checks import check_positive
from torchcaps.clustering._common import (
    check_iterations,
    check_start,
    descend,
    distances,
    plus_plus_centres,
    shares,
    working_data,
)
from torchcaps.clustering.posterior import (
    Posterior,
    Prior,
    divergence_of_components,
    divergence_of_weights,
    mean_with_prior,
    update,
)


class BayesianGMMResult(NamedTuple):
    """What :func:`bayesian_gmm` found.

    Attributes:
        weights: (k,), the expected mixing weights; they sum to 1. Components that are not needed keep little.
        centres: (k, d), the expected means of the components.
        covariances: (k, d), the variances P / nu.
        responsibilities: (n, k), the probability of each component given each point, computed from the posterior; each
            row sums to 1.
        objective: (iterations + 1,), the negative evidence bound, up to a constant, at the start and after each
            iteration; the last entry belongs to the fields above.
        converged: whether ``tolerance`` ended the iterations (False if they ran out).
    """

    weights: Tensor
    centres: Tensor
    covariances: Tensor
    responsibilities: Tensor
    objective: Tensor
    converged: bool

    @property
    def labels(self) -> Tensor:
        """(n,), the index of the most probable component of each point."""
        return self.responsibilities.argmax(1)


@torch.no_grad()
def bayesian_gmm(
    data: Tensor,
    num_components: int | None = None,
    *,
    initial_centres: Tensor | None = None,
    initial_responsibilities: Tensor | None = None,
    alpha0: float = 1.0,
    kappa0: float = 1.0,
    psi0: float = 1.0,
    nu0: float | None = None,
    num_iterations: int = 100,
    tolerance: float | None = 1e-6,
    generator: Generator | None = None,
) -> BayesianGMMResult:
    """Fit a mixture of Gaussians with diagonal covariance and priors, by raising the evidence bound.

    One iteration gives the responsibilities of the posterior at hand and then the posterior of these responsibilities,
    as :func:`torchcaps.routing.vb_routing` does with votes; the formulas are in its derivation. The bound never falls.
    A component cannot shrink to a point, and one that the data do not need keeps to its prior.

    A start from centres (given, or k-means++) gives every point to its nearest centre; one from responsibilities takes
    them as they are.

    Args:
        data: the points; scale them so that the prior, around 0 with variances of about 1, is not absurd.
        num_components: number of components of a k-means++ start; give this or one of the next two.
        initial_centres: centres to start from.
        initial_responsibilities: probabilities R to start from.
        alpha0: prior of the mixing weights; small ones leave components empty.
        kappa0: points that the prior mean, 0, counts for.
        psi0: prior scale of each entry.
        nu0: prior degrees of freedom, more than d - 1; d + 1 unless given.
        num_iterations: the most iterations to run; 0 returns the start.
        tolerance: stop after an iteration that lowers the objective by no more than this per data point. None
            runs all ``num_iterations``.
        generator: source of the k-means++ draws, on the device of the data.

    Shapes:
        data (n, d); initial_centres (k, d); initial_responsibilities (n, k).

    Example:
        >>> import torch
        >>> points = torch.tensor([[-5.0], [-4.0], [4.0], [5.0]])
        >>> result = bayesian_gmm(points, initial_centres=torch.tensor([[-1.0], [1.0]]))
        >>> result.labels.tolist(), result.weights.round(decimals=3).tolist()
        ([0, 0, 1, 1], [0.5, 0.5])
    """
    points_ND = working_data(data)
    check_start(points_ND, num_components, "num_components", initial_centres, initial_responsibilities, generator)
    check_iterations(num_iterations, tolerance)
    size = points_ND.shape[1]
    if nu0 is not None and check_positive("nu0", nu0) <= size - 1:
        raise ValueError(f"nu0 must be more than d - 1 = {size - 1} for data of size {size}, got {nu0}")
    prior = Prior(
        alpha=check_positive("alpha0", alpha0),
        kappa=check_positive("kappa0", kappa0),
        psi=check_positive("psi0", psi0),
        nu=float(size + 1 if nu0 is None else nu0),
    )
    if initial_responsibilities is not None:
        log_start_NK = initial_responsibilities.to(points_ND).log()
    else:
        if num_components is not None:
            centres_KD = plus_plus_centres(points_ND, num_components, "euclidean", generator)
        else:
            assert initial_centres is not None
            centres_KD = initial_centres.to(points_ND)
        nearest_N = distances(points_ND, centres_KD, "euclidean").argmin(1)
        log_start_NK = torch.nn.functional.one_hot(nearest_N, len(centres_KD)).to(points_ND).log()

    posterior, log_responsibilities_NK, objective, converged = descend(
        _believe(points_ND, log_start_NK, prior),
        lambda shares_NK, _: _believe(points_ND, shares_NK, prior),
        lambda found: _expect(points_ND, found, prior),
        num_iterations=num_iterations,
        tolerance=tolerance,
        num_points=len(points_ND),
    )
    return BayesianGMMResult(
        weights=posterior.alpha / posterior.alpha.sum(),
        centres=posterior.mean,
        covariances=posterior.scale / posterior.nu.unsqueeze(-1),
        responsibilities=log_responsibilities_NK.exp(),
        objective=objective,
        converged=converged,
    )


def _believe(points_ND: Tensor, log_responsibilities_NK: Tensor, prior: Prior) -> Posterior:
    """The posterior, given who belongs to whom."""
    shares_NK, log_mass_K, empty_K = shares(log_responsibilities_NK)
    shares_NK = torch.where(empty_K, torch.zeros_like(shares_NK), shares_NK)
    mass_K = log_mass_K.exp()
    mean_KD = mean_with_prior(mass_K, mass_K[:, None] * (shares_NK.T @ points_ND), prior)
    spread_KD = torch.einsum("nk,knd->kd", shares_NK, (points_ND - mean_KD[:, None]).square())
    return update(mass_K, mean_KD, mass_K[:, None] * spread_KD, prior)


def _expect(points_ND: Tensor, posterior: Posterior, prior: Prior) -> tuple[Tensor, Tensor]:
    """The log responsibilities (n, k), and the negative evidence bound."""
    size, total = points_ND.shape[1], posterior.alpha.sum()
    log_share_K = posterior.alpha.digamma() - total.digamma()
    distance_KN = ((points_ND - posterior.mean[:, None]).square() / posterior.scale[:, None]).sum(-1)
    prior_K = log_share_K + 0.5 * posterior.log_precision - 0.5 * size / posterior.kappa
    log_joint_NK = prior_K - 0.5 * posterior.nu * distance_KN.T
    log_evidence_N1 = log_joint_NK.logsumexp(1, keepdim=True)
    components_K = divergence_of_components(posterior, prior)
    weights_K = divergence_of_weights(posterior.alpha, log_share_K, prior)
    divergence = (components_K + weights_K).sum() + total.lgamma()
    return log_joint_NK - log_evidence_N1, divergence - log_evidence_N1.sum()
