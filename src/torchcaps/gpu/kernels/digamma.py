"""psi(x) = d ln Gamma(x) / dx and its derivative, for positive numbers."""

import triton
import triton.language as tl


@triton.jit
def digamma(x, ACC: tl.constexpr):
    """(psi(x), psi'(x)): psi(x) = psi(x + 10) - sum of 1 / (x + k), k < 10.

    Beyond 10 the asymptotic series, whose terms are those of Bernoulli's numbers, is exact to the last of 64 bits.
    """
    value, slope = tl.zeros(x.shape, ACC), tl.zeros(x.shape, ACC)
    for k in tl.static_range(10):
        inverse = 1.0 / (x + k)
        value -= inverse
        slope += inverse * inverse
    y = 1.0 / (x + 10)
    z = y * y
    series = _rational(-691, 32760, ACC) + z * _rational(1, 12, ACC)
    series = _rational(1, 132, ACC) + z * series
    series = _rational(-1, 240, ACC) + z * series
    series = _rational(1, 252, ACC) + z * series
    series = _rational(-1, 120, ACC) + z * series
    value += tl.log(x + 10) - 0.5 * y - z * (_rational(1, 12, ACC) + z * series)
    series = _rational(-691, 2730, ACC) + z * _rational(7, 6, ACC)
    series = _rational(5, 66, ACC) + z * series
    series = _rational(-1, 30, ACC) + z * series
    series = _rational(1, 42, ACC) + z * series
    series = _rational(-1, 30, ACC) + z * series
    slope += y + 0.5 * z + y * z * (_rational(1, 6, ACC) + z * series)
    return value, slope


@triton.jit
def _rational(numerator: tl.constexpr, denominator: tl.constexpr, ACC: tl.constexpr):
    """A fraction to all digits of its type."""
    return tl.full((1,), numerator, ACC) / tl.full((1,), denominator, ACC)


@triton.jit
def sum_of_halves(x, D: tl.constexpr, ACC: tl.constexpr):
    """The sum over d < D of psi((x - d) / 2), x > D - 1, and its derivative with respect to x."""
    value, slope = tl.zeros(x.shape, ACC), tl.zeros(x.shape, ACC)
    for parity in tl.static_range(2):
        if parity < D:
            count = (D - parity + 1) // 2  # d = parity, parity + 2, ...: from the last, upwards
            half = 0.5 * (x - (parity + 2 * (count - 1)))
            psi, derivative = digamma(half, ACC)
            for _ in range(count):
                value += psi
                slope += 0.5 * derivative
                inverse = 1.0 / half  # psi(x + 1) = psi(x) + 1 / x
                psi += inverse
                derivative -= inverse * inverse
                half += 1.0
    return value, slope
