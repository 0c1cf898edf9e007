"""From candidates to a list: by score alone, or with a prize for categories that differ."""

import numpy as np


def merge_diverse(scores: np.ndarray, categories: np.ndarray, k: int, *, diversity: float) -> np.ndarray:
    r"""The places of k candidates that are chosen one after the other (Cen et al. 2020).

    Each time it is the one with the largest :math:`s_i + \lambda \sum_{j chosen} [category_i \neq category_j]`, the
    first of equals. With :math:`\lambda = 0` it is the order of the scores.

    Args:
        scores: of the candidates.
        categories: of the candidates.
        k: how many are chosen.
        diversity: lambda.

    Shapes:
        scores, categories: (n,) -> (min(k, n),)

    Example:
        >>> merge_diverse(np.array([3.0, 2.9, 1.0]), np.array([1, 1, 2]), 2, diversity=2.5).tolist()
        [0, 2]
    """
    if not diversity >= 0:
        raise ValueError(f"diversity must be 0 or more, got {diversity}")
    values, is_free = np.array(scores, np.float64), np.ones(len(scores), bool)
    chosen = []
    for _ in range(min(k, len(scores))):
        place = int(np.where(is_free, values, -np.inf).argmax())
        chosen.append(place)
        is_free[place] = False
        values = values + diversity * (categories != categories[place])
    return np.array(chosen, np.int64)
