"""From logits to couplings (a softmax, or places between extremes), and from their gradients to those of logits."""

import triton
import triton.language as tl

from torchcaps.gpu.kernels.numbers import inverse_length
from torchcaps.gpu.kernels.tile import pair_places


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
