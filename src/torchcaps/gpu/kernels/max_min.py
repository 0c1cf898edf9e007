"""The smallest and the largest logit of those that compete, for max-min couplings, and who has them first.

A gradient that goes through an extreme belongs to one parent. It is told by its number s J + j, and not by its logit:
another kernel may round that in another way.
"""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.passes import at_slot, fold_places, fold_program, program
from torchcaps.gpu.kernels.tile import load_form, pair_places

NOBODY = tl.constexpr(2147483647)


@triton.jit
def extremes(
    votes, form, smallest_out, largest_out, first_smallest_out, first_largest_out, sizes, BY_TYPE: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Of each slot, (blocks of parents, M, N), or with types that do not compete logits themselves (M, N, J).

    Where nobody takes part they are infinite.
    """
    rows, start, end, axes = program(votes, sizes, SHAPE)
    tiles = load_form(form, rows, axes, SHAPE)
    number = rows[2][:, None] * SHAPE.J + axes[0][None, :]
    for n in range(start, end):
        row, takes, slot, vote, logits, part = at_slot(votes, form, tiles, rows, n, axes, sizes, False, SHAPE)
        high, low = tl.where(part, logits, float("-inf")), tl.where(part, logits, float("inf"))
        if BY_TYPE:
            at, inside = pair_places(slot, rows[3], axes, SHAPE)
            tl.store(largest_out + at, high, mask=inside)
            tl.store(smallest_out + at, low, mask=inside)
            tl.store(first_largest_out + at, number, mask=inside)
            tl.store(first_smallest_out + at, number, mask=inside)
        else:
            at = tl.cast(tl.program_id(2), tl.int64) * sizes.samples * sizes.slots + slot
            largest, smallest = tl.max(high, 1), tl.min(low, 1)
            first_largest = tl.min(tl.where(part & (high == largest[:, None]), number, NOBODY), 1)
            first_smallest = tl.min(tl.where(part & (low == smallest[:, None]), number, NOBODY), 1)
            tl.store(largest_out + at, largest, mask=rows[3])
            tl.store(smallest_out + at, smallest, mask=rows[3])
            tl.store(first_largest_out + at, first_largest, mask=rows[3])
            tl.store(first_smallest_out + at, first_smallest, mask=rows[3])


@triton.jit
def fold_extremes(
    values, firsts, slot_start, slot_list, out, first_out, num_rows, rows_of_example, slots_of_example, num_layers, C,
    SIGN: tl.constexpr, RT: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """As `fold`, the largest (SIGN 1) or the smallest (-1), 0 for nobody, and the first parent that has it."""
    begin, count, example, c, out_place, exists, layer_size = fold_program(
        slot_start, num_rows, rows_of_example, slots_of_example, C, RT, CT
    )
    best = tl.full((RT, CT), float("-inf"), values.dtype.element_ty)
    first = tl.full((RT, CT), NOBODY, tl.int32)
    for step in range(tl.max(count)):
        for layer in range(num_layers):
            place, inside = fold_places(slot_start, slot_list, begin, count, example, c, C, layer, step, layer_size)
            value = SIGN * tl.load(values + place, mask=inside, other=-SIGN * float("inf"))
            number = tl.load(firsts + place, mask=inside, other=NOBODY)
            first = tl.where(value > best, number, tl.where(value == best, tl.minimum(first, number), first))
            best = tl.maximum(best, value)
    tl.store(out + out_place, tl.where(best == float("-inf"), 0.0, SIGN * best), mask=exists)
    tl.store(first_out + out_place, first.to(first_out.dtype.element_ty), mask=exists)
