"""Random problems through the kernels of GPUs: finite, and like the reference."""

import pytest

from support.fuzzing import check, draw, is_for_interpreter, with_tiles


def solve(numbers: range) -> int:
    """How many of these problems the kernels took."""
    taken, wrong = 0, {}
    for problem in filter(is_for_interpreter, map(draw, numbers)):
        taken += 1
        with with_tiles(problem.number):
            if found := check(problem)[0]:
                wrong[str(problem)] = found
    assert not wrong
    return taken


@pytest.mark.usefixtures("tiles")
def test_random_problems():
    assert solve(range(10)) >= 3


@pytest.fixture
def tiles():
    """Each problem has its own."""


@pytest.mark.slow
@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("first", range(2_000_000, 2_003_000, 100))
def test_many_random_problems(first):
    """1,514 problems: half of the 3,000 drawn have kernels and few slots."""
    assert solve(range(first, first + 100)) > 0
