"""The products of a layer: votes of a slot, and the gradients of poses and of transformations.

Two ways lead to the same numbers. Sums of products in registers serve every size. Products of tiles (DOT) are what
tensor cores take, where `torchcaps.gpu.tiles.takes_dots`. Entries of votes are their rows: there are more of them than
of samples, and warps share rows.
"""

import triton
import triton.language as tl


@triton.jit
def transform_of(votes, n):
    """The transformation of slot n."""
    if votes.transform is None:
        return tl.cast(n, tl.int64)
    else:
        return tl.cast(tl.load(votes.transform + n), tl.int64)


@triton.jit
def weight_places(votes, n, axes, SHAPE: tl.constexpr):
    """Where row 0 of the transformations of slot n stands, does it exist: (JT, EP) each; row k is k E further."""
    e = tl.arange(0, SHAPE.EP)
    corner = (transform_of(votes, n) * SHAPE.J + axes[0]) * (SHAPE.K * SHAPE.E)
    return votes.weight + (corner[:, None] + e[None, :]), axes[1][:, None] & (e < SHAPE.E)[None, :]


@triton.jit
def pose_places(votes, row, takes, SHAPE: tl.constexpr):
    """Where entry 0 of the rows of poses stands, does it exist: (MT, RP) each; entry k is k further."""
    r = tl.arange(0, SHAPE.RP)
    place = (row * (SHAPE.R * SHAPE.K))[:, None] + (r * SHAPE.K)[None, :]
    return votes.poses + place, takes[:, None] & (r < SHAPE.R)[None, :]


@triton.jit
def entry(at, exists, SHAPE: tl.constexpr):
    """Entries of poses or transformations, each loaded once, and not for every entry of a vote that has it."""
    return tl.load(at, mask=exists, other=0.0).to(SHAPE.ACC)


@triton.jit
def _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE: tl.constexpr):
    pose, weight = entry(pose_at + k, pose_exists, SHAPE), entry(weight_at + k * SHAPE.E, weight_exists, SHAPE)
    return total + pose[:, None, :, None] * weight[None, :, None, :]


@triton.jit
def _sum_of_products(votes, row, takes, n, axes, SHAPE: tl.constexpr):
    pose_at, pose_exists = pose_places(votes, row, takes, SHAPE)
    weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
    total = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP, SHAPE.EP), SHAPE.ACC)
    if SHAPE.K <= 16:
        for k in tl.static_range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    else:
        for k in range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    return tl.reshape(total, (SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP))


@triton.jit
def pose_tile(votes, row, takes, k, SHAPE: tl.constexpr):
    """Entries k of the poses, which are vectors: (MT, KT)."""
    place = row[:, None] * SHAPE.K + k[None, :]
    return tl.load(votes.poses + place, mask=takes[:, None] & (k < SHAPE.K)[None, :], other=0.0).to(SHAPE.ACC)


@triton.jit
def _weight_tile(votes, n, axes, k, SHAPE: tl.constexpr):
    """Rows k of the transformations of slot n: (KT, JT EP)."""
    weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
    exists = weight_exists[None, :, :] & (k < SHAPE.K)[:, None, None]
    weight = tl.load(weight_at[None, :, :] + (k * SHAPE.E)[:, None, None], mask=exists, other=0.0).to(SHAPE.ACC)
    return tl.reshape(weight, (SHAPE.KT, SHAPE.JT * SHAPE.EP))


@triton.jit
def _dot_votes(votes, row, takes, n, axes, SHAPE: tl.constexpr):
    total = tl.zeros((SHAPE.JT * SHAPE.EP, SHAPE.MT), SHAPE.ACC)
    for start in range(0, SHAPE.K, SHAPE.KT):  # unrolled, each step would have shared memory of its own
        k = start + tl.arange(0, SHAPE.KT)
        pose, weight = pose_tile(votes, row, takes, k, SHAPE), _weight_tile(votes, n, axes, k, SHAPE)
        total = tl.dot(tl.trans(weight), tl.trans(pose), total, input_precision=SHAPE.DOT, out_dtype=SHAPE.ACC)
    return tl.reshape(tl.trans(total), (SHAPE.MT, SHAPE.JT, SHAPE.EP))


@triton.jit
def form_votes(votes, row, takes, n, axes, SHAPE: tl.constexpr):
    """Votes of the children in slot n for the parents of the tile: (MT, JT, DP)."""
    if SHAPE.DOT == "":
        total = _sum_of_products(votes, row, takes, n, axes, SHAPE)
    else:
        total = _dot_votes(votes, row, takes, n, axes, SHAPE)
    D: tl.constexpr = SHAPE.R * SHAPE.E
    j, real, _, _, _, h, inside = axes
    if votes.bias is not None:
        place = ((transform_of(votes, n) * SHAPE.J + j) * D)[:, None] + h[None, :]
        exists = real[:, None] & inside[None, :]
        total += tl.load(votes.bias + place, mask=exists, other=0.0).to(SHAPE.ACC)[None, :, :]
    if votes.offset is not None:
        offset = tl.load(votes.offset + tl.cast(n, tl.int64) * D + h, mask=inside, other=0.0)
        total += offset.to(SHAPE.ACC)[None, None, :]
    return total


@triton.jit
def _pose_gradient(to_vote, weight):
    """Gradient of an entry of every row of a pose: (MT, JT, RP, EP), (JT, EP) -> (MT, RP)."""
    return tl.sum(tl.sum(to_vote * weight[None, :, None, :], 3), 1)


@triton.jit
def store_pose_gradients(to_vote, votes, n, number, exists, axes, out, SHAPE: tl.constexpr):
    """Gradients of the poses in slot n, at (number, R K) of `out`."""
    if SHAPE.DOT == "":
        weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
        r = tl.arange(0, SHAPE.RP)
        pose_at = out + ((number * (SHAPE.R * SHAPE.K))[:, None] + (r * SHAPE.K)[None, :])
        inside = exists[:, None] & (r < SHAPE.R)[None, :]
        split = tl.reshape(to_vote, (SHAPE.MT, SHAPE.JT, SHAPE.RP, SHAPE.EP))
        if SHAPE.K <= 16:
            weights = ()  # before anything is stored: the compiler takes those that the votes have loaded
            for k in tl.static_range(SHAPE.K):
                weights += (entry(weight_at + k * SHAPE.E, weight_exists, SHAPE),)
            for k in tl.static_range(SHAPE.K):
                tl.store(pose_at + k, _pose_gradient(split, weights[k]), mask=inside)
        else:
            for k in range(SHAPE.K):
                weight = entry(weight_at + k * SHAPE.E, weight_exists, SHAPE)
                tl.store(pose_at + k, _pose_gradient(split, weight), mask=inside)
    else:
        flat = tl.reshape(to_vote, (SHAPE.MT, SHAPE.JT * SHAPE.EP))
        for start in range(0, SHAPE.K, SHAPE.KT):
            k = start + tl.arange(0, SHAPE.KT)
            weight = _weight_tile(votes, n, axes, k, SHAPE)
            product = tl.trans(tl.dot(weight, tl.trans(flat), input_precision=SHAPE.DOT, out_dtype=SHAPE.ACC))
            inside = exists[:, None] & (k < SHAPE.K)[None, :]
            tl.store(out + (number[:, None] * SHAPE.K + k[None, :]), product, mask=inside)


@triton.jit
def empty_weight_gradients(KT: tl.constexpr, SHAPE: tl.constexpr):
    """Sums to which `add_weight_gradients` adds, for KT entries of a row: one for each, or a tile."""
    if SHAPE.DOT == "":
        totals = ()
        for _ in tl.static_range(KT):
            totals += (tl.zeros((SHAPE.JT, SHAPE.RP, SHAPE.EP), SHAPE.ACC),)
        return totals
    else:
        return tl.zeros((SHAPE.JT * SHAPE.EP, KT), SHAPE.ACC)


@triton.jit
def add_weight_gradients(total, to_vote, votes, row, takes, first, KT: tl.constexpr, SHAPE: tl.constexpr):
    """Those of a slot of some samples, added to those of others, for KT entries from `first` on."""
    if SHAPE.DOT == "":
        pose_at, pose_exists = pose_places(votes, row, takes, SHAPE)
        split = tl.reshape(to_vote, (SHAPE.MT, SHAPE.JT, SHAPE.RP, SHAPE.EP))
        totals = ()
        for k in tl.static_range(KT):
            pose = entry(pose_at + first + k, pose_exists & (first + k < SHAPE.K), SHAPE)
            totals += (total[k] + tl.sum(split * pose[:, None, :, None], 0),)
        return totals
    else:
        flat = tl.trans(tl.reshape(to_vote, (SHAPE.MT, SHAPE.JT * SHAPE.EP)))
        pose = pose_tile(votes, row, takes, first + tl.arange(0, KT), SHAPE)
        return tl.dot(flat, pose, total, input_precision=SHAPE.DOT, out_dtype=SHAPE.ACC)


@triton.jit
def store_weight_gradients(total, out, corner, exists, first, KT: tl.constexpr, SHAPE: tl.constexpr):
    """The sums as transformations have them, summed over the rows of a vote, at (corner (JT,), K, E) of `out`."""
    e = tl.arange(0, SHAPE.EP)
    if SHAPE.DOT == "":
        place = (corner * (SHAPE.K * SHAPE.E))[:, None] + e[None, :]
        real = exists[:, None] & (e < SHAPE.E)[None, :]
        for k in tl.static_range(KT):
            tl.store(out + place + (first + k) * SHAPE.E, tl.sum(total[k], 1), mask=real & (first + k < SHAPE.K))
    else:
        k = first + tl.arange(0, KT)
        place = (corner * (SHAPE.K * SHAPE.E))[:, None, None] + e[None, :, None] + k[None, None, :] * SHAPE.E
        real = exists[:, None, None] & (e < SHAPE.E)[None, :, None] & (k < SHAPE.K)[None, None, :]
        tl.store(out + place, tl.reshape(total, (SHAPE.JT, SHAPE.EP, KT)), mask=real)
