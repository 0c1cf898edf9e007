"""Passes over votes on the way back: gradients of what a weighted sum was made of (see `passes`).

The logit of a pair gets g = c (e - sum over the softmax of R e), its vote c e'(V) + g b'(V): b is the form of the
logits, e that of the gradients of couplings.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.couplings import couple, logit_gradient, softmax_places
from torchcaps.gpu.kernels.passes import activation_of, at_slot, program, store_sums
from torchcaps.gpu.kernels.products import (
    add_weight_gradients,
    empty_weight_gradients,
    store_pose_gradients,
    store_weight_gradients,
)
from torchcaps.gpu.kernels.tile import (
    axes_at,
    derivative,
    deviation,
    load_form,
    pair_places,
    respond,
    samples_at,
)


@triton.jit
def _slot_gradient(
    votes, form, response, tiles, response_tiles, partitions, means, rows, n, axes, sizes, FLOWS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """(row, takes part, vote, coupling, gradient of the logit g, gradient of the vote) of one slot.

    FLOWS: couplings are not constants; without, g is 0.
    """
    row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, True, SHAPE)
    softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
    activation = activation_of(votes, row, takes, SHAPE)
    c = couple(partitions, logits, softmax, part, SHAPE) * activation
    to_vote = c[:, :, None] * derivative(response, response_tiles, vote)
    g = tl.zeros_like(c)
    if FLOWS:
        to_coupling = respond(votes, response, response_tiles, vote, n, axes, sizes, SHAPE)
        g = logit_gradient(partitions, means, c, activation, to_coupling, softmax, rows[2], axes, SHAPE)
        g = tl.where(part, g, 0.0)
        if form.line is not None or form.slope is not None:
            to_vote += g[:, :, None] * derivative(form, tiles, vote)
    return row, takes, vote, c, g, to_vote


@triton.jit
def gradients(
    votes, form, response, partitions, means, out, pose_out, logit_out, worth_out, sizes,
    FLOWS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Of one weighted sum. Sums over a chunk of slots of g (chunks, M, J), g d and g d^2 (chunks, M, J, D), d measured
    from the centre of the logits; gradients of the poses in the slots (blocks of parents, M, N, R K), g itself
    (M, N, J), and that of what children are worth, from the samples of each tile (tiles, N, J). What is None is not
    asked for."""
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    response_tiles = load_form(response, rows, axes, SHAPE)
    total = tl.zeros((SHAPE.MT, SHAPE.JT), SHAPE.ACC)
    sums = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    squares = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    for n in range(start, end):
        row, takes, vote, c, g, to_vote = _slot_gradient(
            votes, form, response, tiles, response_tiles, partitions, means, rows, n, axes, sizes, FLOWS, SHAPE
        )
        total += g
        if out.first is not None:
            weighted = g[:, :, None] * deviation(form, tiles, vote)
            sums += weighted
            if out.second is not None:
                squares += weighted * deviation(form, tiles, vote)
        if pose_out is not None:
            number = (tl.cast(tl.program_id(2), tl.int64) * sizes.samples + rows[0]) * sizes.slots + n
            store_pose_gradients(to_vote, votes, n, number, rows[3], axes, pose_out, SHAPE)
        if logit_out is not None:
            at, exists = pair_places(rows[0] * sizes.slots + n, rows[3], axes, SHAPE)
            tl.store(logit_out + at, g, mask=exists)
        if worth_out is not None:
            at = (tl.cast(tl.program_id(0), tl.int64) * sizes.slots + n) * SHAPE.J + axes[0]
            tl.store(worth_out + at, tl.sum(c * response_tiles[4], 0), mask=axes[1])
    store_sums(out, total, sums, squares, None, rows, axes, sizes, SHAPE)


@triton.jit
def weight_gradients(
    votes, form, response, partitions, means, slot_start, slot_list, weight_out, bias_out, sizes, num_transforms,
    FLOWS: tl.constexpr, GROUP: tl.constexpr, KT: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Of one weighted sum, from a chunk of the samples and slots of each transformation:
    (chunks, transformations, J, K, E) and (chunks, transformations, J, D).

    A program owns GROUP transformations, JT parents and KT entries of a row; it walks over tiles of samples, and over
    the slots of its transformation (slot_list from slot_start[t] on) if there is one. What a tile of samples has is
    loaded once for the group. `sizes.chunk` counts such steps.
    """
    transform, chunk = tl.program_id(0) * GROUP, tl.program_id(1)
    num_blocks = (SHAPE.J + SHAPE.JT - 1) // SHAPE.JT
    axes = axes_at(votes, tl.program_id(2) % num_blocks * SHAPE.JT, SHAPE)
    if KT >= SHAPE.K:
        first = 0
    else:
        first = tl.program_id(2) // num_blocks * KT
    j, parents, h, inside = axes[0], axes[1], axes[5], axes[6]
    to_weight, to_bias = (), ()
    for _ in tl.static_range(GROUP):
        to_weight += (empty_weight_gradients(KT, SHAPE),)
        to_bias += (tl.zeros((SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC),)
    if slot_start is None:
        begin, count = transform, 1
    else:
        begin = tl.load(slot_start + transform)
        count = tl.load(slot_start + transform + 1) - begin
    num_tiles = (sizes.samples + SHAPE.MT - 1) // SHAPE.MT
    steps = count * num_tiles
    end = tl.where(chunk == tl.num_programs(1) - 1, steps, tl.minimum((chunk + 1) * sizes.chunk, steps))
    for step in range(chunk * sizes.chunk, end):
        rows = samples_at(step % num_tiles * SHAPE.MT, sizes, SHAPE)
        if slot_start is None:
            n = begin
        else:
            n = tl.load(slot_list + begin + step // num_tiles)
        tiles = load_form(form, rows, axes, SHAPE)
        response_tiles = load_form(response, rows, axes, SHAPE)
        weight_sums, bias_sums = (), ()
        for i in tl.static_range(GROUP):
            row, takes, vote, c, g, to_vote = _slot_gradient(
                votes, form, response, tiles, response_tiles, partitions, means, rows, n + i, axes, sizes, FLOWS, SHAPE
            )
            total = to_weight[i]
            if weight_out is not None:
                total = add_weight_gradients(total, to_vote, votes, row, takes, first, KT, SHAPE)
            weight_sums += (total,)
            total = to_bias[i]
            if bias_out is not None:
                total += tl.sum(to_vote, 0)
            bias_sums += (total,)
        to_weight, to_bias = weight_sums, bias_sums
    for i in tl.static_range(GROUP):
        corner = (tl.cast(chunk, tl.int64) * num_transforms + transform + i) * SHAPE.J + j
        if weight_out is not None:
            store_weight_gradients(to_weight[i], weight_out, corner, parents, first, KT, SHAPE)
        if bias_out is not None:
            place = (corner * (SHAPE.R * SHAPE.E))[:, None] + h[None, :]
            owner = tl.program_id(2) < num_blocks  # the first of those that share the parents
            tl.store(bias_out + place, to_bias[i], mask=owner & parents[:, None] & inside[None, :])
