"""What all passes over votes share: a tile of samples and parents, and the votes of one slot in it.

A sample is one window of one example, m = b S + s. A program owns MT samples and JT parents and walks over slots: the
votes of a slot are a tile (MT, JT, DP), formed in registers and gone with the next slot. DP = RP EP holds a vote row by
row, each padded to a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def samples_at(start, sizes, SHAPE: tl.constexpr):
    """(sample, example, window, does it exist) of MT samples from `start` on: (MT,) each."""
    sample = start + tl.arange(0, SHAPE.MT)
    exists = sample < sizes.samples
    example, window = sample // sizes.windows, sample % sizes.windows
    return tl.cast(sample, tl.int64), tl.cast(example, tl.int64), tl.cast(window, tl.int64), exists


@triton.jit
def seat(votes, sizes, rows, n):
    """(number b I + i of the child in slot n, does it vote there): (MT,) each."""
    sample, example, window, exists = rows
    if votes.child is None:
        row = example * sizes.children + n
    else:
        row = example * sizes.children + tl.load(votes.child + window * sizes.slots + n, mask=exists, other=0)
    takes = exists
    if votes.window_mask is not None:
        takes = takes & (tl.load(votes.window_mask + sample, mask=exists, other=0) != 0)
    if votes.child_mask is not None:
        takes = takes & (tl.load(votes.child_mask + row, mask=takes, other=0) != 0)
    return row, takes


@triton.jit
def axes_at(votes, first, SHAPE: tl.constexpr):
    """Along the parents of a tile, from `first` on, (number, does it exist, does it take part): (JT,) each; along the
    entries of a vote (row, entry in the row, place in the vote, does it exist): (DP,) each."""
    j = first + tl.arange(0, SHAPE.JT)
    real = j < SHAPE.J
    part = real
    if votes.partial is not None:
        part = real & (tl.load(votes.partial + j, mask=real, other=0) != 0)
    h = tl.arange(0, SHAPE.RP * SHAPE.EP)
    r, e = h // SHAPE.EP, h % SHAPE.EP
    return j, real, part, r, e, r * SHAPE.E + e, (r < SHAPE.R) & (e < SHAPE.E)


@triton.jit
def pair_places(number, exists, axes, SHAPE: tl.constexpr):
    """Where a number per sample (or slot) and parent stands, and whether it exists: (MT, JT) each."""
    return number[:, None] * SHAPE.J + axes[0][None, :], exists[:, None] & axes[1][None, :]


@triton.jit
def vector_places(rows, axes, SHAPE: tl.constexpr):
    """The same for a vector per sample and parent: (MT, JT, DP) each."""
    place, exists = pair_places(rows[0], rows[3], axes, SHAPE)
    D: tl.constexpr = SHAPE.R * SHAPE.E
    return place[:, :, None] * D + axes[5][None, None, :], exists[:, :, None] & axes[6][None, None, :]


@triton.jit
def load_form(form, rows, axes, SHAPE: tl.constexpr):
    """(centre, line, slope) as tiles (MT, JT, DP), height and price (MT, JT); 0 for what the form does not have."""
    centre, line, slope, height, price = 0.0, 0.0, 0.0, 0.0, 0.0
    if form.line is not None or form.slope is not None:
        place, inside = vector_places(rows, axes, SHAPE)
        if form.centre is not None:
            centre = tl.load(form.centre + place, mask=inside, other=0.0)
        if form.line is not None:
            line = tl.load(form.line + place, mask=inside, other=0.0)
        if form.slope is not None:
            slope = tl.load(form.slope + place, mask=inside, other=0.0)
    if form.height is not None:
        place, inside = pair_places(rows[0], rows[3], axes, SHAPE)
        height = tl.load(form.height + place, mask=inside, other=0.0)
    if form.price is not None:
        place, inside = pair_places(rows[0], rows[3], axes, SHAPE)
        price = tl.load(form.price + place, mask=inside, other=0.0)
    return centre, line, slope, height, price


@triton.jit
def deviation(form, tiles, vote):
    """d = V - centre."""
    if form.centre is None:
        return vote
    else:
        return vote - tiles[0]


@triton.jit
def evaluate(form, tiles, vote):
    """The function at the votes of a slot: (MT, JT, DP) -> (MT, JT)."""
    d = deviation(form, tiles, vote)
    if form.slope is None:
        value = tl.sum(tiles[1] * d, 2)
    elif form.line is None:
        value = tl.sum(tiles[2] * d * d, 2)
    else:
        value = tl.sum((tiles[1] + tiles[2] * d) * d, 2)
    if form.height is not None:
        value += tiles[3]
    return value


@triton.jit
def derivative(form, tiles, vote):
    """Of the function with respect to the vote: line + 2 slope d, (MT, JT, DP)."""
    d = deviation(form, tiles, vote)
    if form.slope is None:
        return tiles[1] + tl.zeros_like(d)
    elif form.line is None:
        return 2.0 * tiles[2] * d
    else:
        return tiles[1] + 2.0 * tiles[2] * d


@triton.jit
def logits_of(form, tiles, vote, slot, exists, axes, SHAPE: tl.constexpr):
    """Logits of the pairs of a slot of every sample, whose number is m N + n: (MT, JT)."""
    if form.line is None and form.slope is None:
        logits = tl.zeros((SHAPE.MT, SHAPE.JT), SHAPE.ACC)
    else:
        logits = evaluate(form, tiles, vote)
    if form.given is not None:
        place, inside = pair_places(slot, exists, axes, SHAPE)
        logits += tl.load(form.given + place, mask=inside, other=0.0).to(SHAPE.ACC)
    return logits


@triton.jit
def worth_of(votes, n, axes, sizes, SHAPE: tl.constexpr):
    """What it is worth to the parents of the tile to use the child in slot n: (1, JT)."""
    place = n % sizes.types * SHAPE.J + axes[0]
    return tl.load(votes.worth + place, mask=axes[1], other=0.0).to(SHAPE.ACC)[None, :]


@triton.jit
def respond(votes, response, tiles, vote, n, axes, sizes, SHAPE: tl.constexpr):
    """Gradients of the couplings of a slot: (MT, JT)."""
    value = evaluate(response, tiles, vote)
    if response.price is not None:
        value += tiles[4] * worth_of(votes, n, axes, sizes, SHAPE)
    return value
