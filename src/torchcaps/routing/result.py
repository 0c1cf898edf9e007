"""What every routing returns."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.votes import Votes


class TraceStep(NamedTuple):
    """One iteration of a routing, as it happened; nothing in it carries gradients.

    Shapes:
        coupling: (B, I, J), or (B, *positions, slots, J): the couplings of this iteration's weighted sum
        poses: (B, *positions, J, D): dynamic v, EM mu, K-Means and entropy the raw centres
        activations: (B, *positions, J)
        objective: (B,): what the algorithm descends (MDL-activated EM promises no descent)
    """

    coupling: Tensor
    poses: Tensor
    activations: Tensor
    objective: Tensor

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self._asdict().items())
        return f"TraceStep({shapes})"


class RoutingResult:
    """The parents, who voted for them, and on request how it came about.

    Attributes:
        capsules: the parents, poses (B, *positions, J, D) and activations (B, *positions, J).
        coupling: (B, I, J) for dense votes, (B, *positions, slots, J) for convolutional ones: the couplings of the
            last weighted sum (EM: R). A record without gradients; a backend that does not store couplings computes
            them when they are first asked for, which must be before the weights change.
        trace: one TraceStep per iteration if it was asked for, else None.
        children: what a layer routed, as it came to it: poses (B, *axes, K); None where no layer did.
        votes: of these children, as a layer described them; None where no layer did.
        logits: ln a / (1 - a) of the parents' activations; exact where activations are sigmoids (EM), else taken from
            the activations, kept off 0 and 1 by what their type can tell apart.
    """

    def __init__(
        self,
        capsules: Capsules,
        coupling: Tensor | Callable[[], Tensor],
        trace: tuple[TraceStep, ...] | None = None,
        *,
        logits: Tensor | None = None,
        reads: Sequence[Any] = (),
    ) -> None:
        """`logits`: where activations are sigmoids.

        `reads`: what a function `coupling` reads; tensors among it must not have changed when it is called.
        """
        self.capsules = capsules
        self.own_logits = logits
        self._coupling = coupling
        self.trace = trace
        self.children: Capsules | None = None
        self.votes: Votes | None = None
        self._versions = [] if torch.compiler.is_compiling() else [(t, t._version) for t in reads if _is_counted(t)]

    @property
    def coupling(self) -> Tensor:
        if not isinstance(self._coupling, Tensor):
            if any(tensor._version != version for tensor, version in self._versions):
                raise RuntimeError(
                    "weights or inputs have changed since this routing; ask for its couplings before that"
                )
            self._coupling = self._coupling()
            self._versions = []
        return self._coupling

    @property
    def logits(self) -> Tensor:
        if self.own_logits is not None:
            return self.own_logits
        activations = self.capsules.activations
        return activations.logit(torch.finfo(activations.dtype).eps)

    def normed(self, norm: Callable[[Tensor, Tensor, Tensor | None], Capsules], mask: Tensor | None) -> "RoutingResult":
        """The same routing whose parents went through a norm of poses and logits; couplings and trace stay."""
        self.capsules, self.own_logits = norm(self.capsules.poses, self.logits, mask), None
        return self

    def __repr__(self) -> str:
        steps = "no trace" if self.trace is None else f"trace of {len(self.trace)} steps"
        return f"RoutingResult(poses {tuple(self.capsules.poses.shape)}, {steps})"


def _is_counted(value: Any) -> bool:
    """Whether torch counts the changes of a value."""
    return isinstance(value, Tensor) and not value.is_inference()
