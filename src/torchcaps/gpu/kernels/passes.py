r"""Passes over votes that are never stored; every routing is made of these, forward and backward.

    partition    ln sum_j exp(logit) of each slot           (as in flash attention: then any program finds c_ij itself)
    moments      sums over slots of c, c V, c d^2, c w      the weighted sums of a routing
    couplings    c_ij themselves, on request
    responses    sum_j R_ij e_ij of each slot               e the gradient of a coupling, R without the activation
    gradients    sums over slots of g, g d, g d^2, and the gradients of poses, of logits that were given, and of w
    weight_gradients    the gradients of transformations and their bias
    fold         what slots hold, over the windows that see a child and over the blocks of parents
    extremes     the smallest and the largest logit of each slot, for max-min couplings (in max_min.py)

g_ij = c_ij (e_ij - sum over the softmax of R e) is the gradient of a logit; that of a vote is
c e'(V) + g b'(V), with b the form of the logits and e that of the gradients of couplings. No sum is shared between
programs, so that there are no atomics and results repeat bit for bit. A kernel never reads what it writes.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.couplings import couple, logit_gradient, softmax_places
from torchcaps.gpu.kernels.products import (
    add_weight_gradients,
    empty_weight_gradients,
    form_votes,
    store_pose_gradients,
    store_weight_gradients,
)
from torchcaps.gpu.kernels.tile import (
    axes_at,
    derivative,
    deviation,
    load_form,
    logits_of,
    pair_places,
    respond,
    samples_at,
    seat,
    vector_places,
    worth_of,
)

TINY = tl.constexpr(1e-30)


@triton.jit
def program(votes, sizes, SHAPE: tl.constexpr):
    """(samples, first slot, slot after the last, parents and entries) of a program."""
    rows = samples_at(tl.program_id(0) * SHAPE.MT, sizes, SHAPE)
    start = tl.program_id(1) * sizes.chunk
    end = tl.minimum(start + sizes.chunk, sizes.slots)
    return rows, start, end, axes_at(votes, tl.program_id(2) * SHAPE.JT, SHAPE)


@triton.jit
def _activation(votes, row, takes, SHAPE: tl.constexpr):
    """What couplings are multiplied with: (MT, 1)."""
    if votes.activations is None:
        return tl.full((SHAPE.MT, 1), 1.0, SHAPE.ACC)
    else:
        return tl.load(votes.activations + row, mask=takes, other=0.0).to(SHAPE.ACC)[:, None]


@triton.jit
def partition(votes, form, out, sizes, BY_TYPE: tl.constexpr, SHAPE: tl.constexpr):
    """Out: (blocks of parents, M, N), or with types that do not compete their logits (M, N, J); -inf for nobody."""
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    for n in range(start, end):
        row, takes = seat(votes, sizes, rows, n)
        slot = rows[0] * sizes.slots + n
        if form.line is None and form.slope is None:
            vote = 0.0
        else:
            vote = form_votes(votes, row, takes, n, axes, SHAPE)
        logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
        logits = tl.where(takes[:, None] & axes[2][None, :], logits, float("-inf"))
        if BY_TYPE:
            at, inside = pair_places(slot, rows[3], axes, SHAPE)
            tl.store(out + at, logits, mask=inside)
        else:
            largest = tl.max(logits, 1)
            nobody = largest == float("-inf")
            shift = tl.where(nobody, 0.0, largest)
            total = shift + tl.log(tl.maximum(tl.sum(tl.exp(logits - shift[:, None]), 1), TINY))
            place = tl.cast(tl.program_id(2), tl.int64) * sizes.samples * sizes.slots + slot
            tl.store(out + place, tl.where(nobody, float("-inf"), total), mask=rows[3])


@triton.jit
def moments(votes, form, partitions, out, sizes, SHAPE: tl.constexpr):
    """Sums over a chunk of slots, (chunks, M, J) and (chunks, M, J, D): masses, sums of votes, what is gained.

    With `out.second` they are mass, mean and squared deviations from it, updated slot by slot (Welford): nothing
    cancels, however far the mean is from 0 or from where it was.
    """
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    mass = tl.zeros((SHAPE.MT, SHAPE.JT), SHAPE.ACC)
    gained = tl.zeros((SHAPE.MT, SHAPE.JT), SHAPE.ACC)
    sums = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    if out.second is not None:
        squares = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    for n in range(start, end):
        row, takes = seat(votes, sizes, rows, n)
        slot = rows[0] * sizes.slots + n
        vote = form_votes(votes, row, takes, n, axes, SHAPE)
        logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
        c = couple(partitions, logits, softmax, takes[:, None] & axes[2][None, :], SHAPE)
        c *= _activation(votes, row, takes, SHAPE)
        mass += c
        if out.worth is not None:
            gained += c * worth_of(votes, n, axes, sizes, SHAPE)
        if out.second is None:
            sums += c[:, :, None] * vote
        else:
            share = c / tl.maximum(mass, TINY)
            d = vote - sums
            sums += share[:, :, None] * d
            squares += (c - c * share)[:, :, None] * d * d
    shift = tl.cast(tl.program_id(1), tl.int64) * sizes.samples * SHAPE.J
    place, inside = pair_places(rows[0], rows[3], axes, SHAPE)
    if out.mass is not None:
        tl.store(out.mass + shift + place, mass, mask=inside)
    if out.worth is not None:
        tl.store(out.worth + shift + place, gained, mask=inside)
    shift *= SHAPE.R * SHAPE.E
    place, inside = vector_places(rows, axes, SHAPE)
    tl.store(out.first + shift + place, sums, mask=inside)
    if out.second is not None:
        tl.store(out.second + shift + place, squares, mask=inside)


@triton.jit
def couplings(votes, form, partitions, out, sizes, SHAPE: tl.constexpr):
    """Couplings (M, N, J)."""
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    for n in range(start, end):
        row, takes = seat(votes, sizes, rows, n)
        slot = rows[0] * sizes.slots + n
        if form.line is None and form.slope is None:
            vote = 0.0
        else:
            vote = form_votes(votes, row, takes, n, axes, SHAPE)
        logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
        c = couple(partitions, logits, softmax, takes[:, None] & axes[2][None, :], SHAPE)
        c *= _activation(votes, row, takes, SHAPE)
        place, inside = pair_places(slot, rows[3], axes, SHAPE)
        tl.store(out + place, c, mask=inside)


@triton.jit
def responses(votes, form, response, partitions, out, lower_out, sizes, BY_TYPE: tl.constexpr, SHAPE: tl.constexpr):
    """Out: sum_j R e, (blocks of parents, M, N), or with types that do not compete R e itself (M, N, J); `lower_out`
    has the same of (1 - R) e."""
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    response_tiles = load_form(response, rows, axes, SHAPE)
    for n in range(start, end):
        row, takes = seat(votes, sizes, rows, n)
        slot = rows[0] * sizes.slots + n
        vote = form_votes(votes, row, takes, n, axes, SHAPE)
        logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
        part = takes[:, None] & axes[2][None, :]
        c = couple(partitions, logits, softmax, part, SHAPE)
        to_coupling = respond(votes, response, response_tiles, vote, n, axes, sizes, SHAPE)
        _store_response(out, tl.where(part, c * to_coupling, 0.0), slot, rows, axes, sizes, BY_TYPE, SHAPE)
        if lower_out is not None:
            value = tl.where(part, (1.0 - c) * to_coupling, 0.0)
            _store_response(lower_out, value, slot, rows, axes, sizes, BY_TYPE, SHAPE)


@triton.jit
def _store_response(out, value, slot, rows, axes, sizes, BY_TYPE: tl.constexpr, SHAPE: tl.constexpr):
    if BY_TYPE:
        at, inside = pair_places(slot, rows[3], axes, SHAPE)
        tl.store(out + at, value, mask=inside)
    else:
        place = tl.cast(tl.program_id(2), tl.int64) * sizes.samples * sizes.slots + slot
        tl.store(out + place, tl.sum(value, 1), mask=rows[3])


@triton.jit
def _slot_gradient(
    votes, form, response, tiles, response_tiles, partitions, means, rows, n, axes, sizes, FLOWS: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """(row, takes part, vote, coupling, gradient of the logit g, gradient of the vote) of one slot.

    FLOWS: couplings are not constants; without, g is 0.
    """
    row, takes = seat(votes, sizes, rows, n)
    slot = rows[0] * sizes.slots + n
    vote = form_votes(votes, row, takes, n, axes, SHAPE)
    logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
    softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
    part = takes[:, None] & axes[2][None, :]
    activation = _activation(votes, row, takes, SHAPE)
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
    if out.first is not None:
        sums = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    if out.second is not None:
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
    shift = tl.cast(tl.program_id(1), tl.int64) * sizes.samples * SHAPE.J
    place, inside = pair_places(rows[0], rows[3], axes, SHAPE)
    if out.mass is not None:
        tl.store(out.mass + shift + place, total, mask=inside)
    if out.first is not None:
        shift *= SHAPE.R * SHAPE.E
        place, inside = vector_places(rows, axes, SHAPE)
        tl.store(out.first + shift + place, sums, mask=inside)
        if out.second is not None:
            tl.store(out.second + shift + place, squares, mask=inside)


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


@triton.jit
def fold(
    values, slot_start, slot_list, out, num_rows, rows_of_example, slots_of_example, num_layers, C,
    LOG: tl.constexpr, LEAKY: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Over layers and the slots of each child (slot_list from slot_start[i] on; None: row i is slot i) the sum, or
    LOG the logarithm of the sum of exponentials, 0 for nobody: (layers, B, S N, C) -> (B, I, C)."""
    row, c = tl.program_id(0) * RT + tl.arange(0, RT), tl.program_id(1) * CT + tl.arange(0, CT)
    exists = row < num_rows
    example, i = tl.cast(row // rows_of_example, tl.int64), row % rows_of_example
    if slot_start is None:
        begin, count = i, tl.where(exists, 1, 0)
    else:
        begin = tl.load(slot_start + i, mask=exists, other=0)
        count = tl.load(slot_start + i + 1, mask=exists, other=0) - begin
    total = tl.zeros((RT, CT), values.dtype.element_ty)
    if LOG:
        largest = tl.full((RT, CT), float("-inf"), values.dtype.element_ty)
        if LEAKY:  # a parent with logit 0
            largest, total = tl.zeros((RT, CT), values.dtype.element_ty), total + 1.0
    layer_size = tl.cast(num_rows // rows_of_example, tl.int64) * slots_of_example
    for step in range(tl.max(count)):
        present = step < count
        if slot_start is None:
            slot = begin
        else:
            slot = tl.load(slot_list + begin + step, mask=present, other=0)
        for layer in range(num_layers):
            place = (layer * layer_size + example * slots_of_example + slot)[:, None] * C + c[None, :]
            inside = present[:, None] & (c < C)[None, :]
            if LOG:
                value = tl.load(values + place, mask=inside, other=float("-inf"))
                larger = tl.maximum(largest, value)
                shift = tl.where(larger == float("-inf"), 0.0, larger)
                total = total * tl.exp(largest - shift) + tl.exp(value - shift)
                largest = larger
            else:
                total += tl.load(values + place, mask=inside, other=0.0)
    if LOG:
        nobody = largest == float("-inf")
        total = tl.where(nobody, 0.0, tl.where(nobody, 0.0, largest) + tl.log(tl.maximum(total, TINY)))
    place = tl.cast(row, tl.int64)[:, None] * C + c[None, :]
    tl.store(out + place, total, mask=exists[:, None] & (c < C)[None, :])
