"""K-Means on plain data: soft or hard, dot or Euclidean metric."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from torchcaps.checks import check_choice, check_positive
from torchcaps.clustering._common import (
    Metric,
    check_iterations,
    check_start,
    distances,
    plus_plus_centres,
    shares,
    working_data,
)


@dataclass(frozen=True)
class KMeansResult:
    """What :func:`kmeans` found.

    Attributes:
        centres: (k, d), the centres after the last iteration: sums (dot metric) or means (Euclidean).
        responsibilities: (n, k), the share of each centre in each point, computed from ``centres``; each row
            sums to 1 (``hard``: one 1 and zeros).
        objective: (iterations + 1,), the loss at the start and after each iteration; the last entry belongs
            to ``centres``.
        converged: whether ``tolerance`` ended the iterations (False if they ran out).
    """

    centres: Tensor
    responsibilities: Tensor
    objective: Tensor
    converged: bool

    @property
    def assignments(self) -> Tensor:
        """(n,), the index of the nearest centre of each point (the lowest one of a tie)."""
        return self.responsibilities.argmax(1)


@torch.no_grad()
def kmeans(
    data: Tensor,
    num_clusters: int | None = None,
    *,
    initial_centres: Tensor | None = None,
    initial_responsibilities: Tensor | None = None,
    metric: Metric = "dot",
    inverse_temperature: float | None = None,
    hard: bool = False,
    num_iterations: int = 100,
    tolerance: float | None = 1e-6,
    generator: Generator | None = None,
) -> KMeansResult:
    r"""Cluster data by minimising L = -(1/T) sum_i ln sum_j exp(-T d(x_i, v_j)) over the centres v.

    One iteration, T = ``inverse_temperature``:

        dot (default), d = -<x, v/|v|>:  c_i = softmax_j(T <x_i, v_j/|v_j|>);  v_j = sum_i c_ij x_i
        euclidean, d = |x - v|^2:        c_i = softmax_j(-T |x_i - v_j|^2);    v_j = sum_i c_ij x_i / m_j

    with m_j = sum_i c_ij. L never increases. ``hard=True`` is T = infinity, L = sum_i min_j d(x_i, v_j): with
    the Euclidean metric it is Lloyd's algorithm. A cluster of mass m_j = 0 (hard: without members) keeps its
    centre.

    Nothing is differentiated here; :func:`torchcaps.routing.kmeans_routing` is the differentiable form. Half
    precision data are clustered, and the result returned, in float32. The squares of the data must be
    representable for the Euclidean metric (entries up to about 1e18 in float32).

    Args:
        data: the points.
        num_clusters: number of clusters of a k-means++ start; give this or one of the next two.
        initial_centres: centres to start from.
        initial_responsibilities: couplings c to start from; the first centres are computed from them.
        metric: "dot" or "euclidean".
        inverse_temperature: T > 0, 1 unless given; not together with ``hard``.
        hard: every point belongs wholly to its nearest centre, the lowest index of a tie.
        num_iterations: the most iterations to run; 0 assigns the data to the starting centres.
        tolerance: stop after an iteration that lowers L by no more than this fraction of its size (0: when L
            falls no further). None runs all ``num_iterations``.
        generator: source of the k-means++ draws, on the device of the data.

    Shapes:
        data (n, d); initial_centres (k, d); initial_responsibilities (n, k).

    Example:
        >>> import torch
        >>> points = torch.tensor([[0.0], [1.0], [9.0], [11.0]])
        >>> start = torch.tensor([[0.0], [1.0]])
        >>> result = kmeans(points, initial_centres=start, metric="euclidean", hard=True)
        >>> result.centres.flatten().tolist(), result.assignments.tolist()
        ([0.5, 10.0], [0, 0, 1, 1])
    """
    points_ND = working_data(data)
    check_choice("metric", metric, ("dot", "euclidean"))
    check_start(points_ND, num_clusters, "num_clusters", initial_centres, initial_responsibilities, generator)
    check_iterations(num_iterations, tolerance)
    temperature = _check_temperature(inverse_temperature, hard, points_ND.dtype)

    if num_clusters is not None:
        centres_KD = plus_plus_centres(points_ND, num_clusters, metric, generator)
    elif initial_centres is not None:
        centres_KD = initial_centres.to(points_ND)
    else:
        assert initial_responsibilities is not None
        log_start_NK = initial_responsibilities.to(points_ND).log()
        # No column is empty, so the centres to be kept by empty clusters are never looked at.
        unused_KD = points_ND.new_zeros(log_start_NK.shape[1], points_ND.shape[1])
        centres_KD = _update(points_ND, log_start_NK, unused_KD, metric)

    log_responsibilities_NK, loss = _assign(points_ND, centres_KD, metric, temperature)
    losses = [loss]
    converged = False
    while len(losses) <= num_iterations and not converged:
        centres_KD = _update(points_ND, log_responsibilities_NK, centres_KD, metric)
        log_responsibilities_NK, loss = _assign(points_ND, centres_KD, metric, temperature)
        converged = tolerance is not None and bool(losses[-1] - loss <= tolerance * loss.abs())
        losses.append(loss)
    return KMeansResult(centres_KD, log_responsibilities_NK.exp(), torch.stack(losses), converged)


def _check_temperature(inverse_temperature: float | None, hard: bool, dtype: torch.dtype) -> float | None:
    """The inverse temperature to use; None stands for infinity."""
    if not hard:
        given = 1.0 if inverse_temperature is None else inverse_temperature
        temperature = check_positive("inverse_temperature", given)
        if temperature > torch.finfo(dtype).max:
            raise ValueError(
                f"inverse_temperature must be representable in {dtype}, got {temperature}; "
                "hard=True is its infinite limit"
            )
        return temperature
    if inverse_temperature is not None:
        raise ValueError(
            f"hard=True is an infinite inverse_temperature, got {inverse_temperature} as well; leave one of them out"
        )
    return None


def _assign(points_ND: Tensor, centres_KD: Tensor, metric: Metric, temperature: float | None) -> tuple[Tensor, Tensor]:
    """The log couplings (n, k) of the centres, and their loss; a temperature of None is infinite."""
    distances_NK = distances(points_ND, centres_KD, metric)
    nearest_N1 = distances_NK.amin(1, keepdim=True)
    if temperature is None:
        index_N1 = distances_NK.argmin(1, keepdim=True)  # of equal ones the first
        log_couplings_NK = torch.full_like(distances_NK, -torch.inf).scatter(1, index_N1, 0.0)
        return log_couplings_NK, nearest_N1.sum()
    # Measured from the nearest centre, one logit of each row is 0: the rest may fall to -inf without harm.
    logits_NK = -temperature * (distances_NK - nearest_N1)
    log_total_N1 = logits_NK.logsumexp(1, keepdim=True)
    return logits_NK - log_total_N1, (nearest_N1 - log_total_N1 / temperature).sum()


def _update(points_ND: Tensor, log_couplings_NK: Tensor, centres_KD: Tensor, metric: Metric) -> Tensor:
    """The centres of the couplings; an empty cluster keeps the centre it has."""
    shares_NK, _, empty_K = shares(log_couplings_NK)
    weights_NK = log_couplings_NK.exp() if metric == "dot" else shares_NK
    return torch.where(empty_K[:, None], centres_KD, weights_NK.T @ points_ND)
