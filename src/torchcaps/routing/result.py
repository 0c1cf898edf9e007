"""What every routing returns."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from torchcaps.capsules import Capsules


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


class RoutingResult:
    """The parents, who voted for them, and on request how it came about.

    Attributes:
        capsules: the parents, poses (B, *positions, J, D) and activations (B, *positions, J).
        coupling: (B, I, J) for dense votes, (B, *positions, slots, J) for convolutional ones: the couplings of the
            last weighted sum (EM: R). A record without gradients; a backend that does not store couplings computes
            them when they are first asked for.
        trace: one TraceStep per iteration if it was asked for, else None.
    """

    def __init__(
        self,
        capsules: Capsules,
        coupling: Tensor | Callable[[], Tensor],
        trace: tuple[TraceStep, ...] | None = None,
    ) -> None:
        self.capsules = capsules
        self._coupling = coupling
        self.trace = trace

    @property
    def coupling(self) -> Tensor:
        if not isinstance(self._coupling, Tensor):
            self._coupling = self._coupling()
        return self._coupling

    def __repr__(self) -> str:
        steps = "no trace" if self.trace is None else f"trace of {len(self.trace)} steps"
        return f"RoutingResult(poses {tuple(self.capsules.poses.shape)}, {steps})"
