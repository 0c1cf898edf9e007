"""Schedules: their ends, their formulas, their messages, and that they need no torch."""

import math
import subprocess
import sys
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcaps import schedules
from torchcaps.schedules import (
    constant,
    cosine,
    inverse_temperature,
    linear,
    routing_lambda,
    spread_margin,
    spread_margin_sigmoid,
    step_decay,
)

SCHEDULES = {
    "constant": partial(constant, value=0.3),
    "linear": partial(linear, start=2.0, end=-1.0),
    "cosine": partial(cosine, start=1e-3, end=1e-5, warmup_steps=0.01),
    "step_decay": partial(step_decay, start=3e-3, factor=0.96, every=20),
    "spread_margin": spread_margin,
    "spread_margin_sigmoid": spread_margin_sigmoid,
    "inverse_temperature": inverse_temperature,
}


def test_every_public_schedule_is_tested_here():
    assert set(SCHEDULES) | {"routing_lambda"} == set(schedules.__all__)


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [
        (SCHEDULES["constant"], 0.3, 0.3),
        (SCHEDULES["linear"], 2.0, -1.0),
        (partial(cosine, start=1e-3, end=1e-5), 1e-3, 1e-5),
        (SCHEDULES["spread_margin"], 0.2, 0.9),
        (partial(inverse_temperature, start=0.5, end=8.0), 0.5, 8.0),
    ],
)
def test_both_ends_are_exact(schedule, start, end):
    assert schedule(0, 97) == start
    assert schedule(97, 97) == end


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@given(step=st.integers(0, 1000), total=st.integers(1, 500))
def test_floats_and_the_last_value_is_kept(schedule, step, total):
    value = schedule(step, total)
    assert type(value) is float
    assert math.isfinite(value)
    if step >= total:
        assert value == schedule(total, total)
    assert schedule(float(step), float(total)) == value


@pytest.mark.parametrize("name", ["linear", "spread_margin", "spread_margin_sigmoid", "inverse_temperature"])
@given(step=st.integers(0, 1000), total=st.integers(1, 500))
def test_only_the_fraction_of_the_steps_counts(name, step, total):
    schedule = SCHEDULES[name]
    assert schedule(step * 0.1, total * 0.1) == pytest.approx(schedule(step, total), abs=1e-12)


@given(first=st.floats(0, 200), second=st.floats(0, 200))
def test_monotone(first, second):
    low, high = sorted((first, second))
    assert spread_margin(low, 150) <= spread_margin(high, 150)
    assert spread_margin_sigmoid(low, 150) <= spread_margin_sigmoid(high, 150)
    assert cosine(low, 150, start=1.0) >= cosine(high, 150, start=1.0)
    assert inverse_temperature(low, 150) <= inverse_temperature(high, 150) * (1 + 1e-15)


def test_linear_formula():
    for step in range(11):
        assert linear(step, 10, start=3.0, end=5.0) == pytest.approx(3.0 + 0.2 * step)


def test_spread_margins():
    assert spread_margin(300, 1000) == pytest.approx(0.2 + 0.7 * 0.3)
    assert spread_margin(1, 2, start=0.0, end=1.0) == 0.5
    for step in (0, 100, 500, 1000, 2000):
        exponent = min(10, 14 * min(step, 1000) / 1000 - 4)
        assert spread_margin_sigmoid(step, 1000) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-exponent)))
    assert spread_margin_sigmoid(2, 7) == pytest.approx(0.2 + 0.79 / 2)  # 14 * 2/7 - 4 = 0


def test_cosine_warms_up_then_decays():
    values = [cosine(step, 30, start=2.0, end=1.0, warmup_steps=10) for step in range(31)]
    assert values[:11] == pytest.approx([0.2 * step for step in range(11)])
    expected = [1.0 + 0.5 * (1 + math.cos(math.pi * step / 20)) for step in range(21)]
    assert values[10:] == pytest.approx(expected)


def test_step_decay_formula():
    decay = partial(step_decay, start=3e-3, factor=0.96, every=20_000)
    assert decay(19_999, 10**6) == 3e-3
    assert decay(20_000, 10**6) == pytest.approx(3e-3 * 0.96)
    assert decay(65_000, 10**6) == pytest.approx(3e-3 * 0.96**3)


def test_inverse_temperature_has_equal_ratios():
    values = [inverse_temperature(step, 10, start=2.0, end=32.0) for step in range(11)]
    ratios = [after / before for before, after in pairwise(values)]
    assert ratios == pytest.approx([16 ** (1 / 10)] * 10)


def test_routing_lambda():
    assert [routing_lambda(t) for t in range(3)] == pytest.approx([0.0005, 0.000975, 0.00142625])
    assert routing_lambda(10_000) == pytest.approx(0.01)
    assert routing_lambda(0) > 0  # 0-based with t + 1: the first iteration is not switched off


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: spread_margin(-1, 10), ValueError, "step must be 0 or more, got -1"),
        (lambda: spread_margin(1, 0), ValueError, "total_steps must be a positive finite number, got 0"),
        (lambda: spread_margin("1", 10), TypeError, "step must be an int or a float, got str"),
        (lambda: spread_margin(True, 10), TypeError, "step must be an int or a float, got bool"),
        (lambda: spread_margin(1, None), TypeError, "total_steps must be a positive number, got None"),
        (lambda: spread_margin(math.nan, 10), ValueError, "step must be finite, got nan"),
        (lambda: linear(1, 10, start=math.inf, end=0.0), ValueError, "start must be finite, got inf"),
        (lambda: constant(1, 10, value=None), TypeError, "value must be an int or a float, got NoneType"),
        (
            lambda: cosine(1, 10, start=1.0, warmup_steps=10),
            ValueError,
            r"less than total_steps \(10\), got 10",
        ),
        (lambda: cosine(1, 10, start=1.0, warmup_steps=-1), ValueError, "warmup_steps must be at least 0"),
        (lambda: step_decay(1, 10, start=1.0, factor=0.0, every=1), ValueError, "factor must be a positive"),
        (lambda: step_decay(1, 10, start=1.0, factor=0.5, every=0), ValueError, "every must be a positive"),
        (lambda: inverse_temperature(1, 10, start=0.0), ValueError, "start must be a positive"),
        (lambda: routing_lambda(-1), ValueError, "iteration must be at least 0, got -1"),
        (lambda: routing_lambda(0.5), TypeError, "iteration must be an integer of at least 0, got 0.5"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_schedules_need_no_torch():
    code = "import sys, torchcaps.schedules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
