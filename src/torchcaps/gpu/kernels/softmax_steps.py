"""From weighted sums to the next query and to the output, and back: the step in which softmax routings differ.

Rows are pairs of a sample and a parent; everything is a vector of D entries. Derivations are in the READMEs of
the routings.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.numbers import inverse_length, inverse_mass, number

DYNAMIC = tl.constexpr(0)  # the numbers of SoftmaxAlgorithm; max-min routing takes the steps of this one
KMEANS_DOT = tl.constexpr(1)
KMEANS_EUCLIDEAN = tl.constexpr(2)
ENTROPY = tl.constexpr(3)


@triton.jit
def row_places(num_rows, D: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr):
    """(row (RT,), does it exist, places of its entries (RT, DP), do they exist)."""
    row, h = tl.program_id(0) * RT + tl.arange(0, RT), tl.arange(0, DP)
    exists, row = row < num_rows, tl.cast(row, tl.int64)
    return row, exists, row[:, None] * D + h[None, :], exists[:, None] & (h < D)[None, :]


@triton.jit
def add_chunks(values, place, inside, size, num_chunks, ACC: tl.constexpr):
    """Sum over chunks of slots in a fixed order."""
    total = tl.zeros(place.shape, ACC)
    for chunk in range(num_chunks):
        total += tl.load(values + tl.cast(chunk, tl.int64) * size + place, mask=inside, other=0.0)
    return total


@triton.jit
def _length(vector):
    return tl.sqrt(tl.sum(vector * vector, 1))


@triton.jit
def _squash(vector, squash_k):
    length = _length(vector)
    return vector * (length / (squash_k + length * length))[:, None]


@triton.jit
def _squash_gradient(vector, gradient, squash_k):
    length = _length(vector)
    square = length * length
    slope = (squash_k - square) / (squash_k + square) / (squash_k + square)
    unit = tl.where(length > 0, 1.0 / tl.where(length > 0, length, 1.0), 0.0)
    along = tl.sum(vector * unit[:, None] * gradient, 1) * slope
    return gradient * (length / (squash_k + square))[:, None] + vector * along[:, None]


@triton.jit
def finish_sums(
    sums_in, mass_in, query, sums, mass, next_query, out, num_rows, num_chunks, squash_k, scale,
    D: tl.constexpr, ALGORITHM: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Adds the chunks; then the next query, or the output where `out` is given (that of ENTROPY is left to the caller).

    scale: of a direction, T or 1 / alpha.
    """
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    total = add_chunks(sums_in, place, inside, num_rows * D, num_chunks, ACC)
    tl.store(sums + place, total, mask=inside)
    if ALGORITHM == KMEANS_EUCLIDEAN:
        weight = add_chunks(mass_in, row, exists, num_rows, num_chunks, ACC)
        tl.store(mass + row, weight, mask=exists)
        total *= inverse_mass(weight, ACC)[:, None]
    if out is not None:
        if ALGORITHM != ENTROPY:
            tl.store(out + place, _squash(total, number(squash_k, ACC)), mask=inside)
    else:
        if ALGORITHM == DYNAMIC:
            total = _squash(total, number(squash_k, ACC))
            if query is not None:
                total += tl.load(query + place, mask=inside, other=0.0)
        elif ALGORITHM != KMEANS_EUCLIDEAN:
            total *= (number(scale, ACC) * inverse_length(_length(total), ACC))[:, None]
        tl.store(next_query + place, total, mask=inside)


@triton.jit
def finish_gradient(
    sums_in, grad_out, sums, mass, later, to_pose, to_sums, to_mass, num_rows, num_chunks, squash_k, scale,
    D: tl.constexpr, ALGORITHM: tl.constexpr, RT: tl.constexpr, DP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradient of the sums (and masses) of an iteration: from the output where `grad_out` is given, else from the query
    that they led to, whose gradient `sums_in` holds in chunks.

    In dynamic routing a pose is part of all later queries: `to_pose` takes its gradient, `later` has that of the next.
    """
    row, exists, place, inside = row_places(num_rows, D, RT, DP)
    total = tl.load(sums + place, mask=inside, other=0.0)
    if ALGORITHM == KMEANS_EUCLIDEAN:
        inverse = inverse_mass(tl.load(mass + row, mask=exists, other=0.0), ACC)
        total *= inverse[:, None]
    if grad_out is not None:
        gradient = tl.load(grad_out + place, mask=inside, other=0.0).to(ACC)
        gradient = _squash_gradient(total, gradient, number(squash_k, ACC))
    else:
        gradient = add_chunks(sums_in, place, inside, num_rows * D, num_chunks, ACC)
        if ALGORITHM == DYNAMIC:
            if later is not None:
                gradient += tl.load(later + place, mask=inside, other=0.0)
            tl.store(to_pose + place, gradient, mask=inside)
            gradient = _squash_gradient(total, gradient, number(squash_k, ACC))
        elif ALGORITHM == KMEANS_EUCLIDEAN:
            gradient *= 2.0 * number(scale, ACC)
        else:
            unit = inverse_length(_length(total), ACC)
            direction = total * unit[:, None]
            along = tl.sum(direction * gradient, 1)
            gradient = (gradient - along[:, None] * direction) * (number(scale, ACC) * unit)[:, None]
    if ALGORITHM == KMEANS_EUCLIDEAN:
        gradient *= inverse[:, None]
        tl.store(to_mass + row, -tl.sum(total * gradient, 1), mask=exists)
    tl.store(to_sums + place, gradient, mask=inside)
