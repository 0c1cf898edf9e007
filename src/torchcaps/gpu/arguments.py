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


class Form(NamedTuple):
    r"""A quadratic function of votes for each parent of each sample: height + sum_h (line + slope d) d, d = V - centre.

    What is None is 0. Logits of every routing have this form, and so have gradients of couplings: a softmax routing has
    the logit <V, q> (line q), or -T \|V - q\|^2 (centre q, slope -T), EM has T (ln a + ln p) (centre the mean,
    slope -T / (2 variance), height the rest).

    Shapes:
        centre, line, slope: (M, J, D). height: (M, J). given: (M, N, J), added to the function
    """

    centre: Tensor | None = None
    line: Tensor | None = None
    slope: Tensor | None = None
    height: Tensor | None = None
    given: Tensor | None = None


class Partition(NamedTuple):
    """Numbers of each softmax, in the field that says whose: a slot's, a child's, or that of a child and a type.

    Shapes:
        by_slot: (M, N). by_child: (B, I). by_type: (B, I, J)
    """

    by_slot: Tensor | None = None
    by_child: Tensor | None = None
    by_type: Tensor | None = None


class Sizes(NamedTuple):
    """Numbers that may change from call to call without a new compilation.

    Attributes:
        samples: M, windows of all examples.
        windows: S of an example. slots: N of a window. children: I of an example.
        chunk: slots that one program takes.
    """

    samples: int
    windows: int
    slots: int
    children: int
    chunk: int


class Shape(NamedTuple):
    """What a kernel is compiled for; each a constant of Triton.

    Attributes:
        J: parents. R, K: rows of a pose, and entries of a row. E: entries of a row of a vote, so that D = R E.
        MT, JT: samples and parents in a tile. RP, EP: R and E as powers of two.
        ACC: the type in which everything is computed.
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
