"""What is believed of Gaussians with diagonal precision after data were seen: priors, posteriors, and how far they are.

The precisions of a component are a Wishart distribution with diagonal scale, its mean is Gaussian given them, and
mixing weights are a Dirichlet distribution. Axes before the last two are those of independent problems.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Prior(NamedTuple):
    """Before any data: concentration of the mixing weights, data that the mean 0 counts for, scale, freedom."""

    alpha: float
    kappa: float
    psi: float
    nu: float


class Posterior(NamedTuple):
    """After data were seen.

    Shapes:
        mean M and scale P: (..., k, d); alpha, kappa and nu: (..., k)
    """

    mean: Tensor
    scale: Tensor
    alpha: Tensor
    kappa: Tensor
    nu: Tensor

    @property
    def log_precision(self) -> Tensor:
        """E ln |Lambda|, (..., k)."""
        size = self.mean.shape[-1]
        halves = (self.nu.unsqueeze(-1) - _steps(self.mean)) / 2
        return halves.digamma().sum(-1) + size * math.log(2) - self.scale.log().sum(-1)


def mean_with_prior(mass: Tensor, total: Tensor, prior: Prior) -> Tensor:
    """M: the mean of data that sum to `total` and of kappa0 more of value 0, (..., k, d)."""
    return total / (prior.kappa + mass).unsqueeze(-1)


def update(mass: Tensor, mean: Tensor, scatter: Tensor, prior: Prior) -> Posterior:
    """The posterior of data of mass (..., k), M (..., k, d), and the weighted squares of distances from M, (..., k, d).

    psi0 + scatter + kappa0 M^2 is psi0 + m S + kappa0 m / kappa mu^2 of their mean mu and spread S about it, without a
    division by a mass that may be 0.
    """
    return Posterior(
        mean=mean,
        scale=prior.psi + scatter + prior.kappa * mean.square(),
        alpha=prior.alpha + mass,
        kappa=prior.kappa + mass,
        nu=prior.nu + mass,
    )


def divergence_of_components(posterior: Posterior, prior: Prior) -> Tensor:
    """KL of means and precisions from their prior, (..., k)."""
    size = posterior.mean.shape[-1]
    nu0, log_psi0 = posterior.nu.new_tensor(prior.nu), posterior.nu.new_tensor(size * math.log(prior.psi))
    distance = posterior.nu * (posterior.mean.square() / posterior.scale).sum(-1)
    means = size * (prior.kappa / posterior.kappa - 1 + posterior.kappa.log() - math.log(prior.kappa))
    precisions = (
        _log_normaliser(posterior.nu, posterior.scale.log().sum(-1), posterior.mean)
        - _log_normaliser(nu0, log_psi0, posterior.mean)
        + 0.5 * (posterior.nu - nu0) * posterior.log_precision
        - 0.5 * posterior.nu * size
        + 0.5 * prior.psi * posterior.nu * (1 / posterior.scale).sum(-1)
    )
    return precisions + 0.5 * means + 0.5 * prior.kappa * distance


def divergence_of_weights(alpha: Tensor, log_share: Tensor, prior: Prior) -> Tensor:
    """The part of each component in the KL of mixing weights from their prior, (..., k).

    ln Gamma of the sum of all alpha comes on top, less that of the prior.
    """
    return (alpha - prior.alpha) * log_share - alpha.lgamma() + math.lgamma(prior.alpha)


def _log_normaliser(nu: Tensor, log_scale: Tensor, example: Tensor) -> Tensor:
    """Of a Wishart distribution whose inverse scale has this log-determinant, up to a constant of the size."""
    size = example.shape[-1]
    halves = (nu.unsqueeze(-1) - _steps(example)) / 2
    return 0.5 * nu * (log_scale - size * math.log(2)) - halves.lgamma().sum(-1)


def _steps(example: Tensor) -> Tensor:
    """0, 1, ..., d - 1."""
    return torch.arange(example.shape[-1], device=example.device, dtype=example.dtype)
