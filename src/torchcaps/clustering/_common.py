"""What K-Means and Gaussian mixtures share: checked inputs, k-means++ starts, shares in log space."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional

from torchcaps.checks import check_count, check_floating

Metric = Literal["dot", "euclidean"]


def working_data(data: Tensor) -> Tensor:
    """Check (n, d) data and return it in the dtype in which it is clustered (float32 at least)."""
    check_floating("data", data)
    if data.ndim != 2 or 0 in data.shape:
        raise ValueError(
            f"data must have shape (n, d) with at least one row and column, got {tuple(data.shape)}; "
            "flatten every example to one row"
        )
    if not torch.isfinite(data).all():
        raise ValueError("data must be finite, got NaN or Inf; remove or replace those rows")
    return data.to(torch.promote_types(data.dtype, torch.float32))


def check_start(
    data_ND: Tensor,
    count: int | None,
    count_name: str,
    initial_centres: Tensor | None,
    initial_responsibilities: Tensor | None,
    generator: Generator | None,
) -> None:
    """Check that there is exactly one start, and that it fits the data."""
    starts = {
        count_name: count,
        "initial_centres": initial_centres,
        "initial_responsibilities": initial_responsibilities,
    }
    given = [name for name, value in starts.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"give exactly one of {', '.join(starts)}, got {' and '.join(given) or 'none'}; "
            f"{count_name} asks for a k-means++ start"
        )
    if count is None and generator is not None:
        raise ValueError(f"generator has a use only in a k-means++ start, got it with {given[0]}; leave it out")
    num_points, size = data_ND.shape
    if count is not None and check_count(count_name, count) > num_points:
        raise ValueError(
            f"{count_name} must be at most the number of data points ({num_points}), got {count}; "
            "more centres than points need initial_centres"
        )
    if initial_centres is not None:
        shape = tuple(initial_centres.shape)
        if len(shape) != 2 or shape[0] == 0 or shape[1] != size:
            raise ValueError(f"initial_centres must have shape (k, {size}) for data of size {size}, got {shape}")
    if initial_responsibilities is not None:
        _check_responsibilities(initial_responsibilities, num_points)


def _check_responsibilities(responsibilities: Tensor, num_points: int) -> None:
    shape = tuple(responsibilities.shape)
    if len(shape) != 2 or shape[0] != num_points or shape[1] == 0:
        raise ValueError(f"initial_responsibilities must have shape ({num_points}, k), got {shape}")
    totals_N = responsibilities.sum(1)
    if not bool((responsibilities >= 0).all()) or not torch.allclose(totals_N, torch.ones_like(totals_N), atol=1e-3):
        raise ValueError(
            "initial_responsibilities must be non-negative and sum to 1 over each row; "
            "a softmax over dim=1 gives such rows"
        )
    empty = (responsibilities.sum(0) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"every column of initial_responsibilities must have some mass, got none in {empty}; "
            "drop those columns, or start from initial_centres"
        )


def check_iterations(num_iterations: int, tolerance: float | None) -> None:
    """Check the two options that say how long to iterate."""
    check_count("num_iterations", num_iterations, least=0)
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be 0 or more and finite, got {tolerance}; None runs all num_iterations")


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return x / |x| over the last dimension, 0 for x = 0; safe where |x|^2 would overflow or vanish."""
    largest = vectors.abs().amax(-1, keepdim=True)
    return functional.normalize(vectors / largest.where(largest > 0, 1.0), dim=-1)


def distances(data_ND: Tensor, centres_KD: Tensor, metric: Metric) -> Tensor:
    """|x - v|^2 ("euclidean") or -<x, v/|v|> ("dot") for each point and centre, (n, k)."""
    if metric == "dot":
        return -data_ND @ unit_vectors(centres_KD).T
    # The difference is formed before it is squared: |x|^2 - 2<x,v> + |v|^2 cancels for data far from zero.
    return torch.cdist(data_ND, centres_KD, compute_mode="donot_use_mm_for_euclid_dist").square()


def plus_plus_centres(data_ND: Tensor, count: int, metric: Metric, generator: Generator | None) -> Tensor:
    """k-means++ (Arthur and Vassilvitskii 2007): data points, drawn in proportion to what they still cost.

    The cost of a point is how far its distance to the nearest centre so far exceeds the smallest it could
    have: |x - v|^2 for the Euclidean metric, |x| - <x, v/|v|> for the dot metric (where the first draw, too,
    is in proportion to |x|: a zero vector has no direction to give).
    """
    lengths_N = data_ND.norm(dim=1)
    costs_N = lengths_N if metric == "dot" else torch.ones_like(lengths_N)
    chosen: list[Tensor] = []
    for index in range(count):
        chosen.append(data_ND[_draw(costs_N, generator)])
        shortfall_N = distances(data_ND, chosen[-1], metric).squeeze(1)
        if metric == "dot":
            shortfall_N = (lengths_N + shortfall_N).clamp_min(0)
        costs_N = shortfall_N if index == 0 else torch.minimum(costs_N, shortfall_N)
    return torch.cat(chosen)


def _draw(costs_N: Tensor, generator: Generator | None) -> Tensor:
    """One index, shape (1,), with probability in proportion to its cost (uniform if all costs are zero)."""
    largest = costs_N.max()
    # Scaled by the largest so that the sum cannot overflow; torch.multinomial stops at 2**24 points.
    cumulative_N = (costs_N / largest if largest > 0 else torch.ones_like(costs_N)).cumsum(0)
    uniform = torch.rand(1, dtype=costs_N.dtype, device=costs_N.device, generator=generator)
    index = torch.searchsorted(cumulative_N, uniform * cumulative_N[-1], right=True)
    return index.clamp_max(costs_N.numel() - 1)


def shares(log_responsibilities_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each cluster's share in each point: r_ij / m_j with m_j = sum_i r_ij, from log r.

    Returns:
        The shares (n, k), whose columns sum to 1; log m (k,); and which clusters are empty (k,), that is,
        have a mass that is zero in this precision (their shares mean nothing).
    """
    log_mass_K = log_responsibilities_NK.logsumexp(0)
    empty_K = log_mass_K.exp() == 0
    shares_NK = (log_responsibilities_NK - log_mass_K.masked_fill(empty_K, 0.0)).exp()
    return shares_NK, log_mass_K, empty_K


def descend(
    mixture: Any,
    maximise: Callable[[Tensor, Any], Any],
    expect: Callable[[Any], tuple[Tensor, Tensor]],
    *,
    num_iterations: int,
    tolerance: float | None,
    num_points: int,
) -> tuple[Any, Tensor, Tensor, bool]:
    """Two steps by turns, until the objective falls by no more than the tolerance for each point.

    Args:
        mixture: the start.
        maximise: from log responsibilities (n, k) and the mixture at hand to the next one.
        expect: from a mixture to log responsibilities and the objective.
        num_iterations: at most.
        tolerance: None for never.
        num_points: n.

    Returns:
        The last mixture, its log responsibilities, all objectives, and whether the tolerance ended it.
    """
    log_responsibilities_NK, loss = expect(mixture)
    losses, converged = [loss], False
    while len(losses) <= num_iterations and not converged:
        mixture = maximise(log_responsibilities_NK, mixture)
        log_responsibilities_NK, loss = expect(mixture)
        converged = tolerance is not None and bool(losses[-1] - loss <= tolerance * num_points)
        losses.append(loss)
    return mixture, log_responsibilities_NK, torch.stack(losses), converged
