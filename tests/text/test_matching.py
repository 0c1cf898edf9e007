"""Plans between two sets: they keep to the shares, and are the best where that can be checked."""

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import linprog

from torchcaps.text import best_matching, soft_matching


def some(seed: int, num: int = 3, others: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.uniform(-1, 1, (num, others)), draw.dirichlet(np.ones(num)), draw.dirichlet(np.ones(others))


@pytest.mark.parametrize("seed", range(5))
def test_the_soft_plan_keeps_to_the_shares_and_comes_near_the_best_one(seed):
    similarity, first, second = some(seed)
    plan = soft_matching(similarity, first, second, width=0.05)
    np.testing.assert_allclose(plan.sum(0), second, atol=1e-9)
    np.testing.assert_allclose(plan.sum(1), first, atol=1e-2)
    rows = [np.kron(np.eye(3)[i], np.ones(4)) for i in range(3)] + [np.kron(np.ones(3), np.eye(4)[j]) for j in range(4)]
    best = linprog(-similarity.ravel(), A_eq=rows, b_eq=[*first, *second], bounds=(0, None))
    assert (plan * similarity).sum() == pytest.approx(-best.fun, abs=0.1)
    wide = soft_matching(similarity, first, second, width=100.0)
    np.testing.assert_allclose(wide, np.outer(first, second), atol=1e-2)


def test_many_at_once_and_empty_capsules():
    problems = [some(seed) for seed in range(3)]
    together = soft_matching(*(np.stack(part) for part in zip(*problems, strict=True)))
    for found, problem in zip(together, problems, strict=True):
        np.testing.assert_allclose(found, soft_matching(*problem), atol=1e-12)
        similarity, first, second = problem
        padded = soft_matching(np.pad(similarity, ((0, 2), (0, 1))), np.pad(first, (0, 2)), np.pad(second, (0, 1)))
        np.testing.assert_allclose(padded[:3, :4], found, atol=1e-12)
        assert padded[3:].sum() == padded[:, 4:].sum() == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_best_matching_is_the_best_of_all(seed):
    similarity, first, second = some(seed, 3, 3)
    plan = best_matching(similarity, first, second)
    assert ((plan > 0).sum(0) <= 1).all()
    assert ((plan > 0).sum(1) <= 1).all()
    weight = (first[:, None] + second) / 2
    best = max(sum((weight * similarity)[i, j] for i, j in enumerate(order)) for order in permutations(range(3)))
    assert (plan * similarity).sum() == pytest.approx(best)


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ValueError, match="width must be above 0"):
        soft_matching(*some(0), width=0.0)
