"""Clustering of plain (n, d) data with the steps that the routing algorithms apply to votes.

* :func:`kmeans`: soft or hard K-Means, dot or Euclidean metric.
* :func:`gmm`: Gaussian mixtures with full, diagonal or given covariance, fitted by EM.
"""

from torchcaps.clustering.gmm import GMMResult, gmm
from torchcaps.clustering.kmeans import KMeansResult, kmeans

__all__ = ["GMMResult", "KMeansResult", "gmm", "kmeans"]
