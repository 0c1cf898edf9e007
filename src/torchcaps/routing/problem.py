"""A routing problem: votes, who competes for them, and the options of one algorithm, checked and ready to run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from torchcaps.checks import check_choice, check_floating, check_like, check_mask, check_shape
from torchcaps.precision import solved_type
from torchcaps.routing.competition import KINDS, Competition
from torchcaps.routing.result import RoutingResult
from torchcaps.votes import Votes, as_votes


class Lowering(Protocol):
    """How an algorithm becomes a call of an operator that never forms the votes; see `torchcaps.routing.ops`."""

    def why_not(self, problem: "Problem") -> str | None:
        """Why the operator does not take this problem, from metadata only; None if it does."""

    def run(self, problem: "Problem") -> RoutingResult:
        """Solve the problem."""


@dataclass(frozen=True)
class Algorithm:
    """A name, the specification in eager torch, and how it becomes a call of an operator if there is one."""

    name: str
    reference: Callable[["Problem"], RoutingResult]
    lowering: Lowering | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a backend is asked to solve.

    Attributes:
        votes: the description, activations and mask included.
        options: the algorithm's own options, a frozen dataclass.
        competition: "window", "global" or "position".
        initial_logits: of the shape of the couplings, or None for zeros.
        leaky, partial: see Competition.
        amend: couplings are multiplied by the activations of the children.
        return_trace: record every iteration.
    """

    algorithm: Algorithm
    votes: Votes
    options: Any
    competition: str = "window"
    initial_logits: Tensor | None = None
    leaky: bool = False
    partial: Tensor | None = None
    amend: bool = False
    return_trace: bool = False

    @property
    def votes_bytes(self) -> int:
        """What the votes of the whole batch would occupy."""
        return prod(self.votes.coupling_shape) * self.votes.vote_size * self.votes.example.element_size()

    def compete(self) -> Competition:
        """The competition for the children."""
        return Competition(self.votes, self.competition, leaky=self.leaky, partial=self.partial)

    def first_logits(self) -> Tensor:
        """b_ij at the start, for every example anew."""
        if self.initial_logits is not None:
            return self.initial_logits
        return self.votes.example.new_zeros(self.votes.coupling_shape)

    def slot_weights(self) -> Tensor | None:
        """What couplings are multiplied with: (B, *positions, slots, 1) activations under `amend`, else None."""
        return self.votes.slots(self.votes.child_weights()).unsqueeze(-1) if self.amend else None

    def narrow(self, start: int, length: int) -> "Problem":
        """The problem of `length` examples from `start` on; examples never influence each other."""
        logits = None if self.initial_logits is None else self.initial_logits.narrow(0, start, length)
        return replace(self, votes=self.votes.narrow(start, length), initial_logits=logits)


def pose_problem(
    algorithm: Algorithm,
    votes: Votes | Tensor,
    options: Any,
    *,
    activations: Tensor | None = None,
    mask: Tensor | None = None,
    competition: str,
    initial_logits: Tensor | None,
    leaky: bool = False,
    partial: float | Tensor | None = None,
    amend: bool = False,
    return_trace: bool,
) -> Problem:
    """Check what all routings have in common and put it together."""
    check_choice("competition", competition, KINDS)
    description = as_votes(votes, activations=activations, mask=mask)
    description.check_types()  # they may come from a block of mixed precision
    if solved_type(description.example) == torch.float16:
        raise TypeError("routing needs a wider range of numbers than float16 has; use bfloat16 or float32")
    if amend and description.activations is None:
        raise ValueError("amend multiplies couplings by child activations; give activations, or votes that have them")
    if activations is not None and not amend:
        raise ValueError(f"{algorithm.name} routing has no use for activations unless amend=True; leave them out")
    if initial_logits is not None:
        check_floating("initial_logits", initial_logits)
        check_shape("initial_logits", initial_logits, description.coupling_shape, "of the couplings")
        check_like("initial_logits", initial_logits, "votes", description.example)
    return Problem(
        algorithm=algorithm,
        votes=description,
        options=options,
        competition=competition,
        initial_logits=initial_logits,
        leaky=leaky,
        partial=_draw_parents(partial, description),
        amend=amend,
        return_trace=return_trace,
    )


def _draw_parents(partial: float | Tensor | None, votes: Votes) -> Tensor | None:
    """The parent types that take part in this forward pass, at least one: (J,)."""
    if partial is None:
        return None
    if isinstance(partial, Tensor):
        check_shape("partial", check_mask("partial", partial), (votes.num_parents,), "(J,)")
        if not torch.compiler.is_compiling() and not bool(partial.any()):
            raise ValueError("partial must let at least one parent take part, got none")
        return partial
    if isinstance(partial, bool) or not isinstance(partial, (int, float)) or not 0 < partial <= 1:
        raise ValueError(
            "partial must be the probability in (0, 1] with which a parent takes part, or a boolean tensor (J,), "
            f"got {partial!r}"
        )
    device = votes.example.device
    drawn = torch.rand(votes.num_parents, device=device) < partial
    kept = torch.randint(votes.num_parents, (1,), device=device)
    return drawn | (torch.arange(votes.num_parents, device=device) == kept)
