"""Random problems through the kernels of GPUs: finite, and like the reference."""

import pytest

from support.fuzzing import check, draw

FEW = 30  # slots of all windows: the interpreter walks over them one by one


def solve(numbers: range) -> int:
    """How many of these problems the kernels took."""
    taken, wrong = 0, {}
    for problem in map(draw, numbers):
        votes = problem.describe(problem.leaves)
        if problem.refusal("triton") is None and votes.num_slots <= FEW:
            taken += 1
            if found := check(problem)[0]:
                wrong[str(problem)] = found
    assert not wrong
    return taken


def test_random_problems():
    assert solve(range(12)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2_000_000, 2_004_000, 100))
def test_many_random_problems(first):
    """2,000 problems and more: about half of those drawn have kernels and few slots."""
    assert solve(range(first, first + 100)) > 0
