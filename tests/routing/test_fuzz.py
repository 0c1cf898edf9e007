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


def check_a_lie(monkeypatch, problem, name, change):
    """Backends answer with `name` changed."""
    assert not check(problem)[0]
    honest = type(problem).solve

    def lie(self, backend, **options):
        found = honest(self, backend, **options)
        return found if backend == "reference" else found | {name: change(found[name])}

    monkeypatch.setattr(type(problem), "solve", lie)
    assert any(f"{name} differs" in line for line in check(problem)[0])


def test_a_wrong_answer_is_found(monkeypatch):
    problem = next(problem for problem in map(draw, range(100)) if problem.algorithm == "dynamic" and problem.leaves)
    check_a_lie(monkeypatch, problem, "poses", lambda poses: poses + 0.1)


def test_a_wrong_digit_of_a_tiny_gradient_is_found(monkeypatch):
    """All gradients here are below 1e-11: a parent without children whose activation is 1 - 5e-12."""
    check_a_lie(monkeypatch, draw(2_001_810), "gradient of beta_a", lambda gradient: gradient * (1 + 1e-7))
