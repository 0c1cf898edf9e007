"""From the sums of an M-step to Gaussians, and from the gradients of logits to those of the sums.

Rows are pairs of a sample and a parent. Derivations are in the README of EM routing; an E-step reads a Gaussian as a
form: slope = -T / (2 variance), height = T (ln a - sum_h ln(2 pi variance) / 2).
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.numbers import number
from torchcaps.gpu.kernels.softmax_steps import add_chunks, row_places

MDL = tl.constexpr(0)  # the numbers of EmMapping
MIXING = tl.constexpr(1)
ENTROPY = tl.constexpr(2)
VB = tl.constexpr(3)
HEINSEN = tl.constexpr(4)
MASS = tl.constexpr(5)
LEAST_MASS = tl.constexpr(1e-8)
TINY = tl.constexpr(1e-30)
LOG_2PI = tl.constexpr(1.8378770664093453)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _mass_scale(mass_scale, row, exists, parents_of_example):
    return tl.load(mass_scale + row // parents_of_example, mask=exists, other=1.0)


@triton.jit
def divisor_of(mass, ACC: tl.constexpr):
    """max(mass, LEAST_MASS), with all digits of the latter: `tl.maximum` makes a number of Python one of 32 bits."""
    return tl.maximum(mass, tl.full((1,), LEAST_MASS, ACC))


@triton.jit
def merge(sums, row, exists, place, inside, num_rows, num_chunks, D: tl.constexpr, ACC: tl.constexpr):
    """Mass, mean and squared deviations of all chunks (Chan's rule)."""
    mass = tl.zeros(row.shape, ACC)
    centre = tl.zeros(place.shape, ACC)
    square = tl.zeros(place.shape, ACC)
    for chunk in range(num_chunks):
        shift = tl.cast(chunk, tl.int64) * num_rows
        other = tl.load(sums.mass + shift + row, mask=exists, other=0.0)
        delta = tl.load(sums.first + shift * D + place, mask=inside, other=0.0) - centre
        share = other / tl.maximum(mass + other, TINY)
        square += tl.load(sums.second + shift * D + place, mask=inside, other=0.0)
        square += (mass * share)[:, None] * delta * delta
        centre += share[:, None] * delta
        mass += other
    return mass, centre, square


@triton.jit
def sum_of_logarithms(values, inside):
    return tl.sum(tl.where(inside, tl.log(tl.where(inside, values, 1.0)), 0.0), 1)


@triton.jit
def finish_m_step(
    sums, old, beta_a, beta_u, threshold, mass_scale, out, num_rows, num_chunks, parents_of_example, sharpness,
    temperature, eps, damping, J: tl.constexpr, D: tl.constexpr, ACTIVATION: tl.constexpr, RT: tl.constexpr,
    DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Merges the chunks and ends the M-step. MIXING needs the masses of all parents: the caller adds T ln a to the
    heights and writes the logits."""
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    mass, centre, square = merge(sums, row, exists, place, inside, num_rows, num_chunks, D, ACC)
    # below the least mass the divisor is a constant, and the mean is drawn towards 0
    divisor = divisor_of(mass, ACC)
    mean = centre * (mass / divisor)[:, None]
    lag = number(damping, ACC)
    mean *= 1.0 - lag
    if old is not None:
        mean += lag * tl.load(old + place, mask=inside, other=0.0)
    variance = (square + mass[:, None] * (centre - mean) * (centre - mean)) / divisor[:, None] + number(eps, ACC)
    log_variance = sum_of_logarithms(variance, inside)
    sharp, T = number(sharpness, ACC), number(temperature, ACC)
    height = -0.5 * T * (log_variance + D * LOG_2PI)
    if ACTIVATION == MASS:
        tl.store(out.logit + row, mass, mask=exists)
    elif ACTIVATION != MIXING:
        if ACTIVATION == HEINSEN:
            logit = add_chunks(sums.worth, row, exists, num_rows, num_chunks, ACC)
            logit += tl.load(threshold + row, mask=exists, other=0.0).to(ACC)
        else:
            b_a = tl.load(beta_a + row % J, mask=exists, other=0.0).to(ACC)
            b_u = tl.load(beta_u + row % J, mask=exists, other=0.0).to(ACC)
            if ACTIVATION == MDL:
                cost = (D * b_u + 0.5 * log_variance) * mass
                if mass_scale is not None:
                    cost /= _mass_scale(mass_scale, row, exists, parents_of_example)
            else:
                cost = b_u + 0.5 * log_variance
            logit = sharp * (b_a - cost)
        height += T * log_sigmoid(logit)
        tl.store(out.logit + row, logit, mask=exists)
    tl.store(out.mass + row, mass, mask=exists)
    tl.store(out.height + row, height, mask=exists)
    tl.store(out.mean + place, mean, mask=inside)
    tl.store(out.slope + place, -0.5 * T / variance, mask=inside)


@triton.jit
def from_logits(
    sums, precision, T, row, exists, place, inside, num_rows, num_chunks, D: tl.constexpr, ACC: tl.constexpr
):
    """Gradients of the mean, the variance and the logarithm of the weight, from the sums of g, g d and g d^2."""
    to_log = T * add_chunks(sums.mass, row, exists, num_rows, num_chunks, ACC)
    first = add_chunks(sums.first, place, inside, num_rows * D, num_chunks, ACC)
    second = add_chunks(sums.second, place, inside, num_rows * D, num_chunks, ACC)
    return T * first * precision, 0.5 * precision * (T * second * precision - to_log[:, None]), to_log


@triton.jit
def finish_gradient(
    sums, arriving, carried, shared, kept, old, beta_u, mass_scale, out, to_beta_a, to_beta_u, to_old, num_rows,
    num_chunks, parents_of_example, sharpness, temperature, eps, damping, J: tl.constexpr, D: tl.constexpr,
    ACTIVATION: tl.constexpr, LAST: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The form of the gradient of a weight r = R a, from the gradients of a Gaussian: those of the outputs if LAST,
    else the sums of g, g d and g d^2 over the logits that it gave.

    carried: what the next mean passes on to this one (damping). shared: of MIXING, what every mass gets from the total,
    by example. to_old: what this mean passes on. to_beta_a: of HEINSEN, the gradient of the logit, which is the price.
    """
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    m, z = tl.load(kept.mass + row, mask=exists, other=1.0), tl.load(kept.logit + row, mask=exists, other=0.0)
    mu = tl.load(kept.mean + place, mask=inside, other=0.0)
    T, sharp, lag = number(temperature, ACC), number(sharpness, ACC), number(damping, ACC)
    precision = tl.load(kept.slope + place, mask=inside, other=0.0) / (-0.5 * T)
    variance = tl.where(inside, 1.0 / tl.where(inside, precision, 1.0), 0.0)
    to_mean, to_variance = tl.zeros((RT, DP), ACC), tl.zeros((RT, DP), ACC)
    to_log = tl.zeros((RT,), ACC)
    if LAST:
        if arriving.mean is not None:
            to_mean = tl.load(arriving.mean + place, mask=inside, other=0.0).to(ACC)
        if arriving.activation is not None:
            to_log = tl.load(arriving.activation + row, mask=exists, other=0.0).to(ACC)
            if ACTIVATION != MASS:
                to_log *= tl.exp(z if ACTIVATION == MIXING else log_sigmoid(z))
    else:
        to_mean, to_variance, to_log = from_logits(
            sums, precision, T, row, exists, place, inside, num_rows, num_chunks, D, ACC
        )
        if carried is not None:
            to_mean += tl.load(carried + place, mask=inside, other=0.0)
    if ACTIVATION == MIXING:
        to_mass = tl.where(m >= LEAST_MASS, to_log / tl.maximum(m, LEAST_MASS), 0.0)
        to_mass -= tl.load(shared + row // parents_of_example, mask=exists, other=0.0)
    elif ACTIVATION == MASS:
        to_mass = to_log
    else:
        to_z = to_log * tl.exp(log_sigmoid(-z))
        if LAST and arriving.logit is not None:
            to_z += tl.load(arriving.logit + row, mask=exists, other=0.0).to(ACC)
        to_mass = tl.zeros((RT,), ACC)
        if ACTIVATION == MDL:
            gamma = sharp * to_z
            if mass_scale is not None:
                gamma /= _mass_scale(mass_scale, row, exists, parents_of_example)
            b_u = tl.load(beta_u + row % J, mask=exists, other=0.0).to(ACC)
            to_mass = -gamma * (D * b_u - 0.5 * sum_of_logarithms(precision, inside))
            gamma *= m
            tl.store(to_beta_u + row, -D * gamma, mask=exists)
            to_variance -= 0.5 * gamma[:, None] * precision
        elif ACTIVATION == ENTROPY:
            gamma = sharp * to_z
            tl.store(to_beta_u + row, -gamma, mask=exists)
            to_variance -= 0.5 * gamma[:, None] * precision
        tl.store(to_beta_a + row, sharp * to_z, mask=exists)
    enough, divisor = (m >= LEAST_MASS)[:, None], divisor_of(m, ACC)[:, None]
    behind = tl.zeros((RT, DP), ACC)  # the undamped mean minus this one
    if to_old is not None:
        behind = mu
        if old is not None:
            behind = mu - tl.load(old + place, mask=inside, other=0.0)
        behind *= lag / (1.0 - lag)
    # the derivative of the variance with respect to the mean is -2 (behind + drawn)
    drawn = tl.where(enough, 0.0, mu * (1.0 - m[:, None] / LEAST_MASS))
    to_mean -= 2.0 * to_variance * (behind + drawn)
    a, b = (1.0 - lag) * to_mean / divisor, to_variance / divisor
    spread = variance - number(eps, ACC)
    correction = tl.where(enough, -a * behind - b * spread, a * mu)
    if to_old is not None:
        tl.store(to_old + place, lag * to_mean, mask=inside)
    tl.store(out.line + place, a, mask=inside)
    tl.store(out.slope + place, b, mask=inside)
    tl.store(out.height + row, to_mass + tl.sum(tl.where(inside, correction, 0.0), 1), mask=exists)
