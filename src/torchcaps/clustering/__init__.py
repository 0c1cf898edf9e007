"""Clustering of plain (n, d) data with the steps that the routing algorithms apply to votes.

* :func:`kmeans`: soft or hard K-Means, dot or Euclidean metric.
* :func:`gmm`: Gaussian mixtures with full, diagonal or given covariance, fitted by EM.
* :func:`bayesian_gmm`: Gaussian mixtures with priors, by variational Bayes.
"""

from torchcaps.clustering.bayes import BayesianGMMResult, bayesian_gmm
from torchcaps.clustering.gmm import GMMResult, gmm
from torchcaps.clustering.kmeans import KMeansResult, kmeans

__all__ = ["BayesianGMMResult", "GMMResult", "KMeansResult", "bayesian_gmm", "gmm", "kmeans"]
