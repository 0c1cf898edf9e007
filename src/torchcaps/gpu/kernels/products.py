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
def _sum_of_products(votes, row, takes, n, axes, SHAPE: tl.constexpr):
    r = axes[3]
    pose_at = votes.poses + ((row * (SHAPE.R * SHAPE.K))[:, None] + (r * SHAPE.K)[None, :])
    pose_exists = takes[:, None] & axes[6][None, :]
    weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
    total = tl.zeros((SHAPE.MT, SHAPE.JT, SHAPE.RP * SHAPE.EP), SHAPE.ACC)
    if SHAPE.K <= 16:
        for k in tl.static_range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    else:
        for k in range(SHAPE.K):
            total = _add_product(total, pose_at, pose_exists, weight_at, weight_exists, k, SHAPE)
    return total


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
def _store_entry(to_vote, weight_at, weight_exists, out, inside, k, SHAPE: tl.constexpr):
    """Gradient of entry k of every row of a pose: (MT, RP)."""
    weight = tl.load(weight_at + k * SHAPE.E, mask=weight_exists, other=0.0).to(SHAPE.ACC)
    product = tl.sum(to_vote * weight[None, :, :], 1)
    tl.store(out + k, tl.sum(tl.reshape(product, (SHAPE.MT, SHAPE.RP, SHAPE.EP)), 2), mask=inside)


@triton.jit
def store_pose_gradients(to_vote, votes, n, number, exists, axes, out, SHAPE: tl.constexpr):
    """Gradients of the poses in slot n, at (number, R K) of `out`."""
    if SHAPE.DOT == "":
        weight_at, weight_exists = weight_places(votes, n, axes, SHAPE)
        r = tl.arange(0, SHAPE.RP)
        pose_at = out + ((number * (SHAPE.R * SHAPE.K))[:, None] + (r * SHAPE.K)[None, :])
        inside = exists[:, None] & (r < SHAPE.R)[None, :]
        if SHAPE.K <= 16:
            for k in tl.static_range(SHAPE.K):
                _store_entry(to_vote, weight_at, weight_exists, pose_at, inside, k, SHAPE)
        else:
            for k in range(SHAPE.K):
                _store_entry(to_vote, weight_at, weight_exists, pose_at, inside, k, SHAPE)
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
    """Sums to which `add_weight_gradients` adds, for KT entries of a row."""
    if SHAPE.DOT == "":
        return tl.zeros((SHAPE.JT, SHAPE.RP * SHAPE.EP, KT), SHAPE.ACC)
    else:
        return tl.zeros((SHAPE.JT * SHAPE.EP, KT), SHAPE.ACC)


@triton.jit
def add_weight_gradients(total, to_vote, votes, row, takes, axes, k, SHAPE: tl.constexpr):
    """Those of a slot of some samples, added to those of others."""
    if SHAPE.DOT == "":
        r, inside = axes[3], axes[6]
        place = (row * (SHAPE.R * SHAPE.K))[:, None, None] + (r * SHAPE.K)[None, :, None] + k[None, None, :]
        real = takes[:, None, None] & inside[None, :, None] & (k < SHAPE.K)[None, None, :]
        pose = tl.load(votes.poses + place, mask=real, other=0.0).to(SHAPE.ACC)
        return total + tl.sum(to_vote[:, :, :, None] * pose[:, None, :, :], 0)
    else:
        flat = tl.trans(tl.reshape(to_vote, (SHAPE.MT, SHAPE.JT * SHAPE.EP)))
        pose = pose_tile(votes, row, takes, k, SHAPE)
        return tl.dot(flat, pose, total, input_precision=SHAPE.DOT, out_dtype=SHAPE.ACC)


@triton.jit
def rows_of_weight_gradients(total, KT: tl.constexpr, SHAPE: tl.constexpr):
    """The sums as transformations have them, summed over the rows of a vote: (JT, EP, KT)."""
    return tl.sum(tl.reshape(total, (SHAPE.JT, SHAPE.RP, SHAPE.EP, KT)), 1)
