"""What kernels are given: named tuples of tensors, numbers and constants.

Triton takes a tuple as one argument. A tensor that is None is known when a kernel is compiled, so that what it
would have taken part in is left out.
"""

from typing import Any, NamedTuple

from torch import Tensor


class Votes(NamedTuple):
    """The description of votes (see `torchcaps.routing.ops.votes.KernelVotes`) and who takes part.

    Shapes:
        partial: (J,) bool
        worth: (C, J), what a parent gains by using the child in a slot; slot n has the numbers n % C
    """

    poses: Tensor
    weight: Tensor
    bias: Tensor | None
    offset: Tensor | None
    activations: Tensor | None
    child: Tensor | None
    transform: Tensor | None
    child_mask: Tensor | None
    window_mask: Tensor | None
    partial: Tensor | None
    worth: Tensor | None


class Form(NamedTuple):
    r"""A quadratic function of votes for each parent of each sample: height + sum_h (line + slope d) d, d = V - centre.

    What is None is 0. Logits of every routing have this form, and so have gradients of couplings: a softmax routing has
    the logit <V, q> (line q), or -T \|V - q\|^2 (centre q, slope -T), EM has T (ln a + ln p) (centre the mean,
    slope -T / (2 variance), height the rest).

    Shapes:
        centre, line, slope: (M, J, D). height: (M, J). given: (M, N, J), added to the function
        price: (M, J), its product with what a child is worth is added, too
    """

    centre: Tensor | None = None
    line: Tensor | None = None
    slope: Tensor | None = None
    height: Tensor | None = None
    given: Tensor | None = None
    price: Tensor | None = None


class Partition(NamedTuple):
    """Numbers of each softmax, in the field that says whose: a slot's, a child's, or that of a child and a type.

    They are log-partitions, or on the way back means. Max-min couplings have the largest logit there, or what it gets
    on the way back; `lower` has the same of the smallest. Two more fields tell the first parents that have these
    logits, by their numbers s J + j.

    Shapes:
        by_slot: (M, N). by_child: (B, I). by_type: (B, I, J). The others: like the one of these that is there
    """

    by_slot: Tensor | None = None
    by_child: Tensor | None = None
    by_type: Tensor | None = None
    lower: Tensor | None = None
    first_largest: Tensor | None = None
    first_smallest: Tensor | None = None


class Sums(NamedTuple):
    """Over chunks of slots, None for what is not asked for.

    Shapes:
        mass, worth: (chunks, M, J). first, second: (chunks, M, J, D)
    """

    mass: Tensor | None
    first: Tensor | None
    second: Tensor | None
    worth: Tensor | None = None


class Gaussians(NamedTuple):
    """Of an M-step, as its E-step reads them: slope = -1 / (2 variance) and height times the inverse temperature.

    Shapes:
        mass, height, logit: (M, J). mean, slope: (M, J, D)
    """

    mass: Tensor
    height: Tensor
    logit: Tensor
    mean: Tensor
    slope: Tensor


class Arriving(NamedTuple):
    """Gradients of what EM routings find, None for what nobody differentiates."""

    mean: Tensor | None
    activation: Tensor | None
    logit: Tensor | None


class Sizes(NamedTuple):
    """Numbers that may change from call to call without a new compilation.

    Attributes:
        samples: M, windows of all examples.
        windows: S of an example. slots: N of a window. children: I of an example.
        chunk: slots that one program takes.
        types: C, rows of what children are worth.
    """

    samples: int
    windows: int
    slots: int
    children: int
    chunk: int
    types: int


class Shape(NamedTuple):
    """What a kernel is compiled for; each a constant of Triton.

    Attributes:
        J: parents. R, K: rows of a pose, and entries of a row. E: entries of a row of a vote, so that D = R E.
        MT, JT: samples and parents in a tile. RP, EP: R and E as powers of two.
        ACC: the type in which everything is computed.
        DOT: how products of tiles are rounded ("ieee", "tf32x3", "tf32"); "" for sums of products in registers.
        KT: entries of a pose in a product of tiles.
    """

    J: Any
    R: Any
    K: Any
    E: Any
    MT: Any
    JT: Any
    RP: Any
    EP: Any
    ACC: Any
    DOT: Any
    KT: Any
