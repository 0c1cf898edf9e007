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
def transform_of(votes, n):
    """The transformation of slot n."""
    if votes.transform is None:
        return tl.cast(n, tl.int64)
    else:
        return tl.cast(tl.load(votes.transform + n), tl.int64)


@triton.jit
def weight_places(votes, n, axes, SHAPE: tl.constexpr):
    """Where row 0 of the transformations of slot n stands, spread over the rows of a vote, and whether it exists:
    (JT, DP) each; row k is k E further."""
    j, real, _, _, e, _, inside = axes
    corner = (transform_of(votes, n) * SHAPE.J + j) * (SHAPE.K * SHAPE.E)
    return votes.weight + (corner[:, None] + e[None, :]), real[:, None] & inside[None, :]


@triton.jit
def _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE: tl.constexpr):
    pose = tl.load(pose_at + k, mask=pose_exists, other=0.0).to(SHAPE.ACC)
    weight = tl.load(weight_at + k * SHAPE.E, mask=weight_exists, other=0.0).to(SHAPE.ACC)
    return total + pose[:, None, :] * weight[None, :, :]


@triton.jit
def form_votes(votes, row, takes, n, axes, SHAPE: tl.constexpr):
    """Votes of the children in slot n for the parents of the tile: (MT, JT, DP)."""
    j, _, _, r, _, h, inside = axes
    pose_at = votes.poses + ((row * (SHAPE.R * SHAPE.K))[:, None] + (r * SHAPE.K)[None, :])
    pose_exists = takes[:, None] & inside[None, :]
    weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
    total = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    if SHAPE.K <= 16:
        for k in tl.static_range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    else:
        for k in range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    D: tl.constexpr = SHAPE.R * SHAPE.E
    if votes.bias is not None:
        place = ((transform_of(votes, n) * SHAPE.J + j) * D)[:, None] + h[None, :]
        total += tl.load(votes.bias + place, mask=weight_exists, other=0.0).to(SHAPE.ACC)[None, :, :]
    if votes.offset is not None:
        offset = tl.load(votes.offset + tl.cast(n, tl.int64) * D + h, mask=inside, other=0.0)
        total += offset.to(SHAPE.ACC)[None, None, :]
    return total


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


@triton.jit
def softmax_places(partition, slot, row, takes, axes, SHAPE: tl.constexpr):
    """Where the number of the softmax stands that each pair of a slot belongs to, and whether there is one: (MT, JT)
    each, or (MT, 1) where types share it."""
    if partition.by_type is not None:
        return pair_places(row, takes, axes, SHAPE)
    elif partition.by_child is not None:
        return row[:, None], takes[:, None]
    else:
        return slot[:, None], takes[:, None]


@triton.jit
def of_softmax(partition, at, SHAPE: tl.constexpr):
    """The numbers at these places."""
    if partition.by_type is not None:
        return tl.load(partition.by_type + at[0], mask=at[1], other=0.0)
    elif partition.by_child is not None:
        return tl.load(partition.by_child + at[0], mask=at[1], other=0.0)
    else:
        return tl.load(partition.by_slot + at[0], mask=at[1], other=0.0)


@triton.jit
def couple(partition, logits, at, part, SHAPE: tl.constexpr):
    """Couplings (MT, JT), shares of a softmax or places between the smallest and the largest logit.

    Two kernels may round a logit in different ways; a coupling stays at most 1.
    """
    if partition.lower is None:
        coupling = tl.exp(tl.minimum(logits - of_softmax(partition, at, SHAPE), 0.0))
    else:
        smallest = tl.load(partition.lower + at[0], mask=at[1], other=0.0)
        inverse = inverse_spread(partition, at, SHAPE)
        between = tl.minimum(tl.maximum((logits - smallest) * inverse, 0.0), 1.0)
        coupling = tl.where(inverse > 0, between, 1.0)
    return tl.where(part, coupling, 0.0)


@triton.jit
def inverse_spread(partition, at, SHAPE: tl.constexpr):
    """1 / (largest - smallest logit), 0 where they are equal, or so near that gradients would overflow."""
    spread = of_softmax(partition, at, SHAPE) - tl.load(partition.lower + at[0], mask=at[1], other=0.0)
    return inverse_length(spread, SHAPE.ACC)


@triton.jit
def logit_gradient(partition, means, c, activation, to_coupling, at, window, axes, SHAPE: tl.constexpr):
    """Gradients of the logits of a slot, from those of the couplings: (MT, JT). `c` has the activation in it."""
    mean = of_softmax(means, at, SHAPE)
    if partition.lower is None:
        return c * (to_coupling - mean)
    else:  # the part of the extremes goes to the first parent that has them
        number = window[:, None] * SHAPE.J + axes[0][None, :]
        largest = tl.load(partition.first_largest + at[0], mask=at[1], other=-1) == number
        smallest = tl.load(partition.first_smallest + at[0], mask=at[1], other=-1) == number
        lower = tl.load(means.lower + at[0], mask=at[1], other=0.0)
        gradient = to_coupling - tl.where(largest, mean, 0.0) - tl.where(smallest, lower, 0.0)
        return activation * inverse_spread(partition, at, SHAPE) * gradient


@triton.jit
def inverse(value, ACC: tl.constexpr, FLOAT32: tl.constexpr, FLOAT64: tl.constexpr):
    """1 / value, 0 where the value is not above the bound of its type: there gradients would overflow."""
    least = FLOAT64 if tl.float64 == ACC else FLOAT32
    return tl.where(value > least, 1.0 / tl.where(value > least, value, 1.0), 0.0)


@triton.jit
def inverse_length(length, ACC: tl.constexpr):
    """Of a length, or of a difference of logits."""
    return inverse(length, ACC, 1e-19, 1e-150)
