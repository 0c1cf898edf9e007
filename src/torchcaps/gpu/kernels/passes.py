r"""Passes over votes that are never stored; every routing is made of these, forward and backward.

    partition    ln sum_j exp(logit) of each slot           (as in flash attention: then any program finds c_ij itself)
    moments      sums over slots of c, c V, c d^2, c w      the weighted sums of a routing
    couplings    c_ij themselves, on request
    responses    sum_j R_ij e_ij of each slot               e the gradient of a coupling, R without the activation
    fold         what slots hold, over the windows that see a child and over the blocks of parents
    gradients    sums over slots of g, g d, g d^2, and the gradients of poses, of logits that were given, and of w
    weight_gradients    the gradients of transformations and their bias (both in gradients.py)
    extremes     the smallest and the largest logit of each slot, for max-min couplings (in max_min.py)

g_ij = c_ij (e_ij - sum over the softmax of R e) is the gradient of a logit; that of a vote is
c e'(V) + g b'(V), with b the form of the logits and e that of the gradients of couplings. No sum is shared between
programs, so that there are no atomics and results repeat bit for bit. A kernel never reads what it writes.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.couplings import couple, softmax_places
from torchcaps.gpu.kernels.products import form_votes
from torchcaps.gpu.kernels.tile import (
    axes_at,
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
def at_slot(votes, form, tiles, rows, n, axes, sizes, VOTE: tl.constexpr, SHAPE: tl.constexpr):
    """Of the children in slot n of every sample: (row, do they vote there, number of the slot, vote, logits, which of
    the pairs take part). Without VOTE a vote is formed only where logits follow from it."""
    row, takes = seat(votes, sizes, rows, n)
    slot = rows[0] * sizes.slots + n
    if VOTE or form.line is not None or form.slope is not None:
        vote = form_votes(votes, row, takes, n, axes, SHAPE)
    else:
        vote = 0.0
    logits = logits_of(form, tiles, vote, slot, rows[3], axes, SHAPE)
    return row, takes, slot, vote, logits, takes[:, None] & axes[2][None, :]


@triton.jit
def activation_of(votes, row, takes, SHAPE: tl.constexpr):
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
        row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, False, SHAPE)
        logits = tl.where(part, logits, float("-inf"))
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
    squares = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    for n in range(start, end):
        row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, True, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
        c = couple(partitions, logits, softmax, part, SHAPE)
        c *= activation_of(votes, row, takes, SHAPE)
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
    store_sums(out, mass, sums, squares, gained, rows, axes, sizes, SHAPE)


@triton.jit
def store_sums(out, mass, first, second, worth, rows, axes, sizes, SHAPE: tl.constexpr):
    """What `out` has room for, of a chunk of slots."""
    shift = tl.cast(tl.program_id(1), tl.int64) * sizes.samples * SHAPE.J
    place, inside = pair_places(rows[0], rows[3], axes, SHAPE)
    if out.mass is not None:
        tl.store(out.mass + shift + place, mass, mask=inside)
    if out.worth is not None:
        tl.store(out.worth + shift + place, worth, mask=inside)
    shift *= SHAPE.R * SHAPE.E
    place, inside = vector_places(rows, axes, SHAPE)
    if out.first is not None:
        tl.store(out.first + shift + place, first, mask=inside)
    if out.second is not None:
        tl.store(out.second + shift + place, second, mask=inside)


@triton.jit
def couplings(votes, form, partitions, out, sizes, SHAPE: tl.constexpr):
    """Couplings (M, N, J)."""
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    for n in range(start, end):
        row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, False, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
        c = couple(partitions, logits, softmax, part, SHAPE)
        c *= activation_of(votes, row, takes, SHAPE)
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
        row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, True, SHAPE)
        softmax = softmax_places(partitions, slot, row, takes, axes, SHAPE)
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
def fold_program(slot_start, num_rows, rows_of_example, slots_of_example, C, RT: tl.constexpr, CT: tl.constexpr):
    """Of a program that folds RT rows and CT columns: (first slot in the list, number of slots) (RT,) each; place of
    the first value of their examples (RT, 1); columns, places of what is found, does it exist; size of a layer."""
    row, c = tl.program_id(0) * RT + tl.arange(0, RT), tl.program_id(1) * CT + tl.arange(0, CT)
    exists = row < num_rows
    example, i = tl.cast(row // rows_of_example, tl.int64), row % rows_of_example
    if slot_start is None:
        begin, count = i, tl.where(exists, 1, 0)
    else:
        begin = tl.load(slot_start + i, mask=exists, other=0)
        count = tl.load(slot_start + i + 1, mask=exists, other=0) - begin
    place = tl.cast(row, tl.int64)[:, None] * C + c[None, :]
    layer_size = tl.cast(num_rows // rows_of_example, tl.int64) * slots_of_example
    return begin, count, example * slots_of_example, c, place, exists[:, None] & (c < C)[None, :], layer_size


@triton.jit
def fold_places(slot_start, slot_list, begin, count, example, c, C, layer, step, layer_size):
    """Where the values of the rows stand in step `step` of a layer, and whether there are any: (RT, CT) each."""
    present = step < count
    if slot_start is None:
        slot = begin
    else:
        slot = tl.load(slot_list + begin + step, mask=present, other=0)
    place = (layer * layer_size + example + slot)[:, None] * C + c[None, :]
    return place, present[:, None] & (c < C)[None, :]


@triton.jit
def fold(
    values, slot_start, slot_list, out, num_rows, rows_of_example, slots_of_example, num_layers, C,
    LOG: tl.constexpr, LEAKY: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Over layers and the slots of each child (slot_list from slot_start[i] on; None: row i is slot i) the sum, or
    LOG the logarithm of the sum of exponentials, 0 for nobody: (layers, B, S N, C) -> (B, I, C)."""
    begin, count, example, c, out_place, exists, layer_size = fold_program(
        slot_start, num_rows, rows_of_example, slots_of_example, C, RT, CT
    )
    total = tl.zeros((RT, CT), values.dtype.element_ty)
    if LOG:
        largest = tl.full((RT, CT), float("-inf"), values.dtype.element_ty)
        if LEAKY:  # a parent with logit 0
            largest, total = tl.zeros((RT, CT), values.dtype.element_ty), total + 1.0
    for step in range(tl.max(count)):
        for layer in range(num_layers):
            place, inside = fold_places(slot_start, slot_list, begin, count, example, c, C, layer, step, layer_size)
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
    tl.store(out + out_place, total, mask=exists)
