"""Two sets of capsules: which of them belong together, and how alike that makes the sets."""

import numpy as np
from scipy.optimize import linear_sum_assignment

SCALINGS = 20  # of rows and columns at each width
WIDTHS = (1.0, 0.3, 0.1)  # of the entropy, from wide to narrow; the last one is asked for


def best_matching(similarity: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    r"""The plan of the best matching: each capsule has one partner at most.

    Pairs are chosen for the largest :math:`\sum_{ij} P_{ij} \, s_{ij}` with :math:`P_{ij} = (a_i + b_j) / 2` for pairs.
    What has no partner is not in the plan: sets of different sizes are less alike.

    Shapes:
        similarity: (K, L); first: (K,) and second: (L,), shares that add up to 1 -> plan (K, L)

    Example:
        >>> best_matching(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([0.5, 0.5]), np.array([0.4, 0.6])).tolist()
        [[0.0, 0.55], [0.45, 0.0]]
    """
    weight = (first[:, None] + second) / 2
    rows, columns = linear_sum_assignment(weight * similarity, maximize=True)
    plan = np.zeros_like(weight)
    plan[rows, columns] = weight[rows, columns]
    return plan


def soft_matching(similarity: np.ndarray, first: np.ndarray, second: np.ndarray, *, width: float = 0.1) -> np.ndarray:
    r"""The plan of entropy-regularised transport: every capsule goes to those that it is like, in parts.

    Maximises :math:`\sum_{ij} P_{ij} s_{ij} - w \sum_{ij} P_{ij} \ln P_{ij}` over plans whose rows add up to the shares
    of the first set and whose columns to those of the second, by Sinkhorn's scaling in the domain of logarithms. With
    one capsule on a side it is the product of the shares, and sets of one capsule are as alike as their vectors.

    Args:
        similarity: of the capsules.
        first, second: their shares.
        width: w; what is narrower is nearer to the best plan and takes longer.

    Shapes:
        similarity: (..., K, L); first: (..., K), second: (..., L), each adds up to 1 -> plan (..., K, L)

    Example:
        >>> plan = soft_matching(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([0.5, 0.5]), np.array([0.4, 0.6]))
        >>> plan.round(3).tolist()
        [[0.0, 0.5], [0.4, 0.1]]
    """
    if not width > 0:
        raise ValueError(f"width must be above 0, got {width}")
    with np.errstate(divide="ignore"):
        log_first, log_second = np.log(first)[..., :, None], np.log(second)[..., None, :]
    across, before = np.zeros_like(log_second), width
    for step in [*(each for each in WIDTHS if each > width), width]:
        logits, across, before = similarity / step, across * (before / step), step
        for _ in range(SCALINGS):
            down = log_first - _log_sum(logits + across, -1)
            across = log_second - _log_sum(logits + down, -2)
    return np.exp(logits + down + across)


def _log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    highest = values.max(axis, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    return np.log(np.maximum(np.exp(values - highest).sum(axis, keepdims=True), 1e-300)) + highest
