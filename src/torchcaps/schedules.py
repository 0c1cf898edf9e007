"""Schedules: pure functions of the step with one signature, ``schedule(step, total_steps, *, ...) -> float``.

``step`` runs from 0 (the start value) to ``total_steps`` (the end value); both may be fractions, such as
epochs. Beyond ``total_steps`` a schedule keeps its last value, so a run may be prolonged. The exception is
:func:`routing_lambda`, a function of the routing iteration inside a layer, which has no total.

Options are bound with :func:`functools.partial`:

    >>> from functools import partial
    >>> learning_rate = partial(cosine, start=1e-3, warmup_steps=10)
    >>> learning_rate(10, 100)
    0.001
"""

import math

from torchcaps.checks import check_count, check_positive

__all__ = [
    "constant",
    "cosine",
    "inverse_temperature",
    "linear",
    "routing_lambda",
    "spread_margin",
    "spread_margin_sigmoid",
    "step_decay",
]


def constant(step: float, total_steps: float, *, value: float) -> float:
    """The same value at every step.

    Example:
        >>> constant(3, 10, value=0.5)
        0.5
    """
    _progress(step, total_steps)
    return float(_finite("value", value))


def linear(step: float, total_steps: float, *, start: float, end: float) -> float:
    """Straight line: start + (end - start) step / total_steps.

    Example:
        >>> linear(5, 10, start=1.0, end=2.0)
        1.5
    """
    progress = _progress(step, total_steps)
    # Written as a weighted sum, it is exactly `start` and exactly `end` at its two ends.
    return _finite("start", start) * (1.0 - progress) + _finite("end", end) * progress


def cosine(step: float, total_steps: float, *, start: float, end: float = 0.0, warmup_steps: float = 0) -> float:
    """Cosine decay from start to end, after a linear warm-up from 0 to start.

    start step / warmup_steps while step < warmup_steps; then, with q running from 0 to 1 over the remaining
    steps, end + (start - end) (1 + cos(pi q)) / 2.

    Example:
        >>> [round(cosine(step, 12, start=1.0, warmup_steps=2), 3) for step in (0, 1, 2, 7, 12)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    progress = _progress(step, total_steps)
    _finite("start", start)
    _finite("end", end)
    _finite("warmup_steps", warmup_steps)
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps must be at least 0 and less than total_steps ({total_steps}), got {warmup_steps}"
        )
    if step < warmup_steps:
        return start * step / warmup_steps
    warmup = warmup_steps / total_steps
    fraction = (progress - warmup) / (1.0 - warmup)
    return end + (start - end) * (1.0 + math.cos(math.pi * fraction)) / 2.0


def step_decay(step: float, total_steps: float, *, start: float, factor: float, every: float) -> float:
    """Multiplied by a factor at regular steps: start factor^floor(step / every).

    Example:
        >>> [step_decay(step, 30, start=8.0, factor=0.5, every=10) for step in (0, 9, 10, 20)]
        [8.0, 8.0, 4.0, 2.0]
    """
    _progress(step, total_steps)
    num_decays = math.floor(min(step, total_steps) / check_positive("every", every))
    return _finite("start", start) * math.pow(check_positive("factor", factor), num_decays)


def spread_margin(step: float, total_steps: float, *, start: float = 0.2, end: float = 0.9) -> float:
    """Margin of the spread loss, linear from 0.2 to 0.9 over training (Hinton, Sabour, Frosst 2018).

    Example:
        >>> spread_margin(0, 1000), round(spread_margin(500, 1000), 3), spread_margin(1000, 1000)
        (0.2, 0.55, 0.9)
    """
    return linear(step, total_steps, start=start, end=end)


def spread_margin_sigmoid(step: float, total_steps: float) -> float:
    """Margin of the spread loss in its sigmoid form: 0.2 + 0.79 sigmoid(min(10, 14 step / total_steps - 4)).

    Example:
        >>> [round(spread_margin_sigmoid(step, 70), 3) for step in (0, 20, 70)]
        [0.214, 0.595, 0.99]
    """
    return 0.2 + 0.79 / (1.0 + math.exp(-min(10.0, 14.0 * _progress(step, total_steps) - 4.0)))


def inverse_temperature(step: float, total_steps: float, *, start: float = 1.0, end: float = 10.0) -> float:
    """Inverse temperature T of K-Means routing, in equal ratios: start (end / start)^(step / total_steps).

    Its reciprocal is a schedule for the alpha of entropy routing (alpha = 1 / T).

    Example:
        >>> [round(inverse_temperature(step, 2, start=1.0, end=100.0), 6) for step in (0, 1, 2)]
        [1.0, 10.0, 100.0]
    """
    progress = _progress(step, total_steps)
    start_power = math.pow(check_positive("start", start), 1.0 - progress)
    return start_power * math.pow(check_positive("end", end), progress)


def routing_lambda(iteration: int) -> float:
    """lambda_t = 0.01 (1 - 0.95^(t+1)) of EM routing, t the routing iteration counted from 0.

    Example:
        >>> [round(routing_lambda(iteration), 6) for iteration in range(3)]
        [0.0005, 0.000975, 0.001426]
    """
    return 0.01 * (1.0 - math.pow(0.95, check_count("iteration", iteration, least=0) + 1))


def _progress(step: float, total_steps: float) -> float:
    """The fraction of the steps that is done, at most 1."""
    if _finite("step", step) < 0:
        raise ValueError(f"step must be 0 or more, got {step}")
    return min(1.0, step / check_positive("total_steps", total_steps))


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be an int or a float, got {type(value).__name__}; use float({name})")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return value
