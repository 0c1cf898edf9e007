"""From the sums of an M-step to the posteriors of variational routing, and back.

Rows are pairs of a sample and a parent. Derivations are in the README of the routing. An E-step reads a posterior as a
Gaussian with the mean M, the variance P / nu, and the rest, a function of masses alone, as the logarithm of its weight.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.digamma import digamma, sum_of_halves
from torchcaps.gpu.kernels.em_steps import LOG_2PI, from_logits, log_sigmoid, merge, sum_of_logarithms
from torchcaps.gpu.kernels.numbers import number
from torchcaps.gpu.kernels.softmax_steps import row_places


@triton.jit
def finish_posterior(
    sums, out, num_rows, num_chunks, prior, D: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr
):
    """Mean and variance; the heights have everything but the weights, which need the masses of other parents."""
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    mass, centre, square = merge(sums, row, exists, place, inside, num_rows, num_chunks, D, ACC)
    kappa0, psi0, nu0 = number(prior[1], ACC), number(prior[2], ACC), number(prior[3], ACC)
    mean = centre * (mass / (mass + kappa0))[:, None]  # the prior counts as kappa0 more votes for 0
    scale = psi0 + kappa0 * mean * mean + square + mass[:, None] * (centre - mean) * (centre - mean)
    variance = scale / (mass + nu0)[:, None]
    tl.store(out.mass + row, mass, mask=exists)
    tl.store(out.height + row, -0.5 * sum_of_logarithms(variance, inside), mask=exists)
    tl.store(out.mean + place, mean, mask=inside)
    tl.store(out.slope + place, -0.5 / variance, mask=inside)


@triton.jit
def weigh(
    mass, total, beta_a, beta_u, partial_height, height, logit, num_rows, prior,
    J: tl.constexpr, D: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Heights and logits. total: of alpha, over those that share mixing weights, for each row."""
    row, exists, _, _ = row_places(num_rows, D, RT, DP)
    m = tl.load(mass + row, mask=exists, other=1.0)
    half_log_precision = tl.load(partial_height + row, mask=exists, other=0.0)
    share, _ = digamma(m + number(prior[0], ACC), ACC)
    psi, _ = digamma(tl.load(total + row, mask=exists, other=1.0), ACC)
    share -= psi
    nu = m + number(prior[3], ACC)
    freedom, _ = sum_of_halves(nu, D, ACC)
    freedom = 0.5 * (freedom + D * tl.log(2.0 / nu))
    entropy = 0.5 * D * (LOG_2PI + 1.0) - freedom - half_log_precision
    b_a = tl.load(beta_a + row % J, mask=exists, other=0.0).to(ACC)
    b_u = tl.load(beta_u + row % J, mask=exists, other=0.0).to(ACC)
    tl.store(logit + row, b_a - b_u - tl.exp(share) * entropy, mask=exists)
    weight = share + freedom - 0.5 * D / (m + number(prior[1], ACC))
    tl.store(height + row, half_log_precision + weight, mask=exists)


@triton.jit
def finish_posterior_gradient(
    sums, arriving, total, to_total, kept, beta_a, beta_u, out, to_logit, num_rows, num_chunks, prior,
    J: tl.constexpr, D: tl.constexpr, LAST: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The form of the gradient of a weight r = R a, as `finish_gradient` of EM.

    to_total: the sum, over those that share mixing weights, of the gradients of E ln pi, for each row.
    """
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    m, z = tl.load(kept.mass + row, mask=exists, other=1.0), tl.load(kept.logit + row, mask=exists, other=0.0)
    precision = -2.0 * tl.load(kept.slope + place, mask=inside, other=0.0)
    variance = tl.where(inside, 1.0 / tl.where(inside, precision, 1.0), 0.0)
    to_mean, to_variance = tl.zeros((RT, DP), ACC), tl.zeros((RT, DP), ACC)
    to_log, to_z = tl.zeros((RT,), ACC), tl.zeros((RT,), ACC)
    if LAST:
        if arriving.mean is not None:
            to_mean = tl.load(arriving.mean + place, mask=inside, other=0.0).to(ACC)
        if arriving.activation is not None:
            to_z = tl.load(arriving.activation + row, mask=exists, other=0.0).to(ACC)
            to_z *= tl.exp(log_sigmoid(z) + log_sigmoid(-z))
        if arriving.logit is not None:
            to_z += tl.load(arriving.logit + row, mask=exists, other=0.0).to(ACC)
    else:
        to_mean, to_variance, to_log = from_logits(
            sums, precision, 1.0, row, exists, place, inside, num_rows, num_chunks, D, ACC
        )
    kappa, nu = m + number(prior[1], ACC), m + number(prior[3], ACC)
    share, share_slope = digamma(m + number(prior[0], ACC), ACC)
    psi, total_slope = digamma(tl.load(total + row, mask=exists, other=1.0), ACC)
    _, freedom_slope = sum_of_halves(nu, D, ACC)
    b_a = tl.load(beta_a + row % J, mask=exists, other=0.0).to(ACC)
    b_u = tl.load(beta_u + row % J, mask=exists, other=0.0).to(ACC)
    to_share = to_log + (z - b_a + b_u) * to_z
    to_precision = 0.5 * tl.exp(share - psi) * to_z  # of E ln |Lambda|
    to_variance -= to_precision[:, None] * precision
    to_mass = to_share * share_slope - total_slope * tl.load(to_total + row, mask=exists, other=0.0)
    to_mass += (0.5 * to_log + to_precision) * (freedom_slope - D / nu) + 0.5 * D * to_log / (kappa * kappa)
    to_mass -= tl.sum(to_variance * variance, 1) / nu
    tl.store(out.line + place, to_mean / kappa[:, None], mask=inside)
    tl.store(out.slope + place, to_variance / nu[:, None], mask=inside)
    tl.store(out.height + row, to_mass, mask=exists)
    tl.store(to_logit + row, to_z, mask=exists)
