"""Who does the work of an operator: one body for each family and type of device.

A device that the package knows is a package of its own that registers its bodies when it is imported, and one line in
DEVICES. Code from elsewhere calls `register_body`.
"""

import os
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from torchcaps.routing.problem import Problem

DEVICES = ("torchcaps.native", "torchcaps.gpu")


def interprets() -> bool:
    """Whether this process runs the kernels of GPUs in Triton's interpreter, on tensors of the CPU, for tests.

    TRITON_INTERPRET=1 says so; then they, and not the kernels of the CPU, do the work there.
    """
    return os.environ.get("TRITON_INTERPRET") == "1"


class Body(Protocol):
    """The kernels of one family on one type of device; inputs and options are those of the family.

    What is kept for the backward pass, for couplings and for traces is one tensor, the state. Its shape and its layout
    are the body's own affair. A body of another backend than "fused" names it as `backend`; one that should not be
    taken unasked says why in `why_not_unasked(device)`.
    """

    def why_not(self, problem: Problem, options: Any) -> str | None:
        """Why the kernels do not take this problem, from metadata only; None if they do."""

    def room(self, inputs: Any, keep_state: bool) -> Tensor:
        """An empty state; of no entries if it need not be kept and the kernels can do without."""

    def forward(self, inputs: Any, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        """Fill the outputs of the family, and the state if it has room."""

    def backward(
        self, inputs: Any, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]
    ) -> None:
        """Fill the gradients that are asked for, by the names of their inputs, from those of the outputs.

        An output that nobody differentiates has None.
        """

    def couplings(self, inputs: Any, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        """Fill the couplings of a weighted sum, and what else the family tells of it."""


_bodies: dict[tuple[str, str], Body] = {}


def register_body(family: str, device_type: str, body: Body) -> None:
    """Let `body` do the work of a family of operators on a type of device, such as "cuda".

    Args:
        family: "softmax" or "em".
        device_type: as in `tensor.device.type`.
        body: see Body.
    """
    if (family, device_type) in _bodies:
        raise ValueError(f"the {family} kernels of {device_type!r} are registered already, register them once")
    _bodies[family, device_type] = body


def find_body(family: str, device_type: str) -> Any:
    """The body for tensors on such a device; ask `why_no_body` first."""
    return _bodies[family, device_type]


def backend_of(family: str, device_type: str) -> str | None:
    """The backend whose kernels a body is of; None where there is no body."""
    body = _bodies.get((family, device_type))
    return None if body is None else getattr(body, "backend", "fused")


def devices_of(backend: str) -> list[str]:
    """The types of device for which a backend has kernels."""
    return sorted({device for family, device in _bodies if backend_of(family, device) == backend})


def why_not_unasked(device: torch.device) -> str | None:
    """Why the kernels of a device should be named to run; None where its bodies have nothing to say about that."""
    asks = (getattr(body, "why_not_unasked", None) for (_, kind), body in _bodies.items() if kind == device.type)
    return next((ask(device) for ask in asks if ask is not None), None)


def why_no_body(family: str, device_type: str) -> str | None:
    """Why nothing does the work of a family on a type of device; None if something does."""
    if (family, device_type) in _bodies:
        return None
    known = [device for other, device in _bodies if other == family]
    return f"it has kernels for votes on {' and '.join(known) or 'no device'}, these are on {device_type}"


def load_bodies() -> None:
    """Import what registers the bodies of this package."""
    for name in DEVICES:
        import_module(name)
