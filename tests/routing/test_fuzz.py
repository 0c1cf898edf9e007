"""Random problems through every routing and backend: finite, and all backends agree."""

import pytest

from support.fuzzing import check, draw


def solve(numbers: range) -> None:
    wrong = {str(problem): found for problem in map(draw, numbers) if (found := check(problem)[0])}
    assert not wrong


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_problems(first):
    solve(range(first, first + 50))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000_000, 1_020_000, 1000))
def test_many_random_problems(first):
    solve(range(first, first + 1000))


def test_a_wrong_answer_is_found(monkeypatch):
    problem = next(problem for problem in map(draw, range(100)) if problem.algorithm == "dynamic" and problem.leaves)
    honest = type(problem).solve

    def lie(self, backend, **options):
        found = honest(self, backend, **options)
        return found if backend == "reference" else found | {"poses": found["poses"] + 0.1}

    monkeypatch.setattr(type(problem), "solve", lie)
    wrong, _ = check(problem)
    assert any("poses differs" in line for line in wrong)
