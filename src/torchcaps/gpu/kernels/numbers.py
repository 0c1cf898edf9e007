"""Numbers of kernels, and what becomes of them near 0."""

import triton
import triton.language as tl


@triton.jit
def number(pair, ACC: tl.constexpr):
    """A number that came as two of 32 bits: Triton makes every float of Python one."""
    return tl.cast(pair[0], ACC) + tl.cast(pair[1], ACC)


@triton.jit
def inverse(value, ACC: tl.constexpr, FLOAT32: tl.constexpr, FLOAT64: tl.constexpr):
    """1 / value, 0 where the value is not above the bound of its type: there gradients would overflow."""
    least = FLOAT64 if tl.float64 == ACC else FLOAT32
    return tl.where(value > least, 1.0 / tl.where(value > least, value, 1.0), 0.0)


@triton.jit
def inverse_length(length, ACC: tl.constexpr):
    """Of a length, or of a difference of logits."""
    return inverse(length, ACC, 1e-19, 1e-150)


@triton.jit
def inverse_mass(mass, ACC: tl.constexpr):
    """Of a sum of couplings."""
    return inverse(mass, ACC, 1e-30, 1e-290)
