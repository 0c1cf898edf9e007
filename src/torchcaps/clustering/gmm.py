"""Gaussian mixtures on plain data, fitted by expectation-maximisation in log space."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from torchcaps.checks import check_choice, check_positive
from torchcaps.clustering._common import (
    check_iterations,
    check_start,
    descend,
    distances,
    plus_plus_centres,
    shares,
    working_data,
)

Covariance = Literal["full", "diagonal", "given"]
DEFAULT_EPS_VAR = 1e-6


@dataclass(frozen=True)
class GMMResult:
    """What :func:`gmm` found.

    Attributes:
        weights: (k,), the mixing weights; they sum to 1.
        centres: (k, d), the means of the components.
        covariances: (k, d, d) for "full"; (k, d), the variances, for "diagonal" and "given".
        responsibilities: (n, k), the probability of each component given each point, computed from the fields
            above; each row sums to 1.
        objective: (iterations + 1,), the negative log-likelihood of the data at the start and after each
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
    def assignments(self) -> Tensor:
        """(n,), the index of the most probable component of each point."""
        return self.responsibilities.argmax(1)


class _Mixture(NamedTuple):
    log_weights_K: Tensor
    centres_KD: Tensor
    covariances: Tensor  # (k, d, d) or (k, d)


@torch.no_grad()
def gmm(
    data: Tensor,
    num_components: int | None = None,
    *,
    initial_centres: Tensor | None = None,
    initial_responsibilities: Tensor | None = None,
    covariance: Covariance = "full",
    sigma: float | None = None,
    eps_var: float | None = None,
    num_iterations: int = 100,
    tolerance: float | None = 1e-6,
    generator: Generator | None = None,
) -> GMMResult:
    r"""Fit a mixture of Gaussians by minimising -sum_i log sum_j pi_j N(x_i; mu_j, Sigma_j).

    One iteration:

        E-step:  R_i.    = softmax_j( log pi_j + log N(x_i; mu_j, Sigma_j) )
        M-step:  m_j     = sum_i R_ij;   pi_j = m_j / n;   mu_j = sum_i R_ij x_i / m_j
                 Sigma_j = sum_i R_ij (x_i - mu_j)(x_i - mu_j)^T / m_j + eps_var I     ("full")
                           its diagonal alone                                          ("diagonal")
                           sigma^2 I, not learned                                      ("given")

    With "given" the objective never increases, and sigma -> 0 gives hard Euclidean K-Means; with the others
    it never increases while the variances are far larger than ``eps_var``. A component without mass keeps
    its centre and covariance. Eigenvalues of a full covariance below the precision of the dtype (relative to
    the largest) are raised to it inside the density.

    A start from centres (given, or k-means++) has equal weights and, for every component, the scatter of the
    data around the nearest centre as its covariance. A start from responsibilities is one M-step.

    Nothing is differentiated here; :func:`torchcaps.routing.em_routing` is the differentiable relative. Half
    precision data are clustered, and the result returned, in float32. Squares of the data, divided by the
    smallest variance, must be representable (with the default ``eps_var``: entries up to about 1e15 in
    float32).

    Args:
        data: the points.
        num_components: number of components of a k-means++ start; give this or one of the next two.
        initial_centres: means to start from.
        initial_responsibilities: probabilities R to start from.
        covariance: "full", "diagonal" or "given".
        sigma: the standard deviation of every component in every direction; with "given", and only there.
        eps_var: added to every variance, 1e-6 unless given; not with "given".
        num_iterations: the most iterations to run; 0 returns the start.
        tolerance: stop after an iteration that lowers the objective by no more than this per data point. None
            runs all ``num_iterations``.
        generator: source of the k-means++ draws, on the device of the data.

    Shapes:
        data (n, d); initial_centres (k, d); initial_responsibilities (n, k).

    Example:
        >>> import torch
        >>> points = torch.tensor([[-1.0], [1.0], [98.0], [102.0]])
        >>> start = torch.tensor([[0.0], [90.0]])
        >>> result = gmm(points, initial_centres=start, covariance="diagonal", eps_var=1e-3)
        >>> result.centres.flatten().tolist(), result.weights.tolist()
        ([0.0, 100.0], [0.5, 0.5])
        >>> [round(variance, 3) for variance in result.covariances.flatten().tolist()]
        [1.001, 4.001]
    """
    points_ND = working_data(data)
    check_start(points_ND, num_components, "num_components", initial_centres, initial_responsibilities, generator)
    check_iterations(num_iterations, tolerance)
    added_variance = _check_covariance(covariance, sigma, eps_var, points_ND.dtype)

    if num_components is not None:
        centres_KD = plus_plus_centres(points_ND, num_components, "euclidean", generator)
    elif initial_centres is not None:
        centres_KD = initial_centres.to(points_ND)
    else:
        assert initial_responsibilities is not None
        centres_KD = points_ND.mean(0).expand(initial_responsibilities.shape[1], -1)
    mixture = _around_centres(points_ND, centres_KD, covariance, added_variance)
    if initial_responsibilities is not None:
        log_start_NK = initial_responsibilities.to(points_ND).log()
        mixture = _maximise(points_ND, log_start_NK, mixture, covariance, added_variance)

    mixture, log_responsibilities_NK, objective, converged = descend(
        mixture,
        lambda shares_NK, previous: _maximise(points_ND, shares_NK, previous, covariance, added_variance),
        lambda found: _expect(points_ND, found),
        num_iterations=num_iterations,
        tolerance=tolerance,
        num_points=len(points_ND),
    )
    return GMMResult(
        weights=mixture.log_weights_K.exp(),
        centres=mixture.centres_KD,
        covariances=mixture.covariances,
        responsibilities=log_responsibilities_NK.exp(),
        objective=objective,
        converged=converged,
    )


def _check_covariance(covariance: str, sigma: float | None, eps_var: float | None, dtype: torch.dtype) -> float:
    """The variance to add to what the data say: eps_var, or the whole of it, sigma^2, if it is given."""
    check_choice("covariance", covariance, ("full", "diagonal", "given"))
    if covariance != "given" and sigma is not None:
        raise ValueError(f'sigma belongs to covariance="given", got sigma={sigma} with "{covariance}"; leave it out')
    if covariance == "given" and eps_var is not None:
        raise ValueError(f'covariance="given" learns no variance, got eps_var={eps_var}; leave it out and give sigma')
    if covariance == "given" and sigma is None:
        raise ValueError('covariance="given" needs sigma, the standard deviation of every component')
    if sigma is not None:
        variance = check_positive("sigma", sigma) ** 2
    else:
        variance = check_positive("eps_var", DEFAULT_EPS_VAR if eps_var is None else eps_var)
    if not torch.finfo(dtype).tiny <= variance <= torch.finfo(dtype).max:
        raise ValueError(
            f"eps_var and the square of sigma must be representable in {dtype}, got {variance}; "
            "give another value, or the data in float64"
        )
    return variance


def _around_centres(points_ND: Tensor, centres_KD: Tensor, covariance: Covariance, added_variance: float) -> _Mixture:
    """Equal weights, the given centres, and the scatter around the nearest one as everyone's covariance."""
    num_components, size = centres_KD.shape
    log_weights_K = points_ND.new_full((num_components,), -math.log(num_components))
    residuals_ND = points_ND - centres_KD[distances(points_ND, centres_KD, "euclidean").argmin(1)]
    if covariance == "full":
        scatter_DD = residuals_ND.T @ residuals_ND / len(points_ND)
        scatter_DD = scatter_DD + added_variance * torch.eye(size).to(points_ND)
        return _Mixture(log_weights_K, centres_KD, scatter_DD.expand(num_components, -1, -1))
    scatter_D = residuals_ND.square().mean(0) if covariance == "diagonal" else torch.zeros_like(points_ND[0])
    return _Mixture(log_weights_K, centres_KD, (scatter_D + added_variance).expand(num_components, -1))


def _expect(points_ND: Tensor, mixture: _Mixture) -> tuple[Tensor, Tensor]:
    """E-step: the log responsibilities (n, k), and the negative log-likelihood."""
    offsets_KND = points_ND - mixture.centres_KD[:, None]
    if mixture.covariances.ndim == 3:
        # Eigenvectors instead of a Cholesky factor: they exist for singular covariances too.
        variances_KD, axes_KDD = torch.linalg.eigh(mixture.covariances)
        precision = torch.finfo(points_ND.dtype).eps * points_ND.shape[1]
        variances_KD = torch.maximum(variances_KD, precision * variances_KD[:, -1:])
        offsets_KND = offsets_KND @ axes_KDD
    else:
        variances_KD = mixture.covariances
    quadratic_KN = (offsets_KND.square() / variances_KD[:, None]).sum(-1)
    log_normaliser_K = (2 * math.pi * variances_KD).log().sum(-1)
    log_joint_NK = mixture.log_weights_K - 0.5 * (quadratic_KN.T + log_normaliser_K)
    log_evidence_N1 = log_joint_NK.logsumexp(1, keepdim=True)
    return log_joint_NK - log_evidence_N1, -log_evidence_N1.sum()


def _maximise(
    points_ND: Tensor,
    log_responsibilities_NK: Tensor,
    previous: _Mixture,
    covariance: Covariance,
    added_variance: float,
) -> _Mixture:
    """M-step; a component without mass keeps its previous centre and covariance."""
    shares_NK, log_mass_K, empty_K = shares(log_responsibilities_NK)
    log_weights_K = log_mass_K - math.log(len(points_ND))
    centres_KD = torch.where(empty_K[:, None], previous.centres_KD, shares_NK.T @ points_ND)
    if covariance == "given":
        return _Mixture(log_weights_K, centres_KD, previous.covariances)
    offsets_KND = points_ND - centres_KD[:, None]
    if covariance == "full":
        covariances_KDD = (shares_NK.T[:, :, None] * offsets_KND).mT @ offsets_KND
        covariances_KDD = covariances_KDD + added_variance * torch.eye(points_ND.shape[1]).to(points_ND)
        kept_KDD = torch.where(empty_K[:, None, None], previous.covariances, covariances_KDD)
        return _Mixture(log_weights_K, centres_KD, kept_KDD)
    variances_KD = torch.einsum("nk,knd->kd", shares_NK, offsets_KND.square()) + added_variance
    return _Mixture(log_weights_K, centres_KD, torch.where(empty_K[:, None], previous.covariances, variances_KD))
