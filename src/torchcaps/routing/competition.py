r"""Who competes for a child: the softmax over the parents it reaches."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.capsules import least_length
from torchcaps.votes import Votes

KINDS = ("window", "global", "position")  # in the order of csrc/competition.h


class Competition:
    r"""Normalises logits over parents: :math:`c_{ij} = \exp b_{ij} / \sum_{j'} \exp b_{ij'}`, never over children.

    Under "window" a child shares itself among the parent types of each window it lies in, window by window; under
    "global" among all positions and types that see it, once; under "position" among the positions that see it, once
    for each parent type, so that types do not compete and the couplings of a child sum to their number. Votes without
    windows, dense ones and those of classes, compete over types under each of the three. A masked child, a slot of a
    position that does not exist, and a parent that an example does not have, has coupling 0.

    Args:
        votes: the description whose children compete.
        kind: "window", "global" or "position".
        leaky: an extra parent with logit 0 joins every softmax and its share is dropped; under "position" that is one
            leak for each type.
        partial: (J,), the parent types that take part (partial normalisation), or None for all; the others have
            coupling 0.
    """

    def __init__(self, votes: Votes, kind: str, *, leaky: bool = False, partial: Tensor | None = None) -> None:
        self.votes = votes
        self.leaky = leaky
        slot_mask = votes.slot_mask()
        self.takes_part = None if slot_mask is None else slot_mask.unsqueeze(-1)
        if partial is not None:
            self.takes_part = partial if self.takes_part is None else self.takes_part & partial
        if votes.parent_mask is not None:
            there = votes.parent_mask.unsqueeze(-2)
            self.takes_part = there if self.takes_part is None else self.takes_part & there
        self.child_SN = votes.windows.children(votes.example.device) if votes.windows and kind != "window" else None
        self.types_compete = self.child_SN is None or kind != "position"

    def first(self, initial_logits: Tensor | None) -> Tensor:
        """Couplings at the start: those of the given logits, or equal shares.

        Under "position" equal shares are the same as under "window", 1 / J for every parent that sees the child.
        """
        if initial_logits is not None:
            return self.softmax(initial_logits)
        logits = self.votes.example.new_zeros(self.votes.coupling_shape)
        if self.types_compete:
            return self.softmax(logits)
        return self._fill(self._softmax_over_types(self._fill(logits, torch.finfo(logits.dtype).min)), 0.0)

    def softmax(self, logits: Tensor) -> Tensor:
        """Couplings of the given logits.

        Shapes:
            logits: (B, I, J) or (B, *positions, slots, J); the result alike
        """
        logits = self._fill(logits, torch.finfo(logits.dtype).min)
        over_types = self.child_SN is None
        coupling = self._softmax_over_types(logits) if over_types else self._softmax_over_windows(logits)
        return self._fill(coupling, 0.0)

    def assign(self, logits: Tensor) -> Tensor:
        """Couplings of 0 or 1 to the largest logit, ties to the first parent (the limit of a softmax)."""
        lowest = torch.finfo(logits.dtype).min
        logits = self._fill(logits.detach(), lowest)
        if self.child_SN is None:
            coupling = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
            return self._fill(coupling, 0.0)
        slots = logits.flatten(1, -2)
        best = self._reduce(self._over_types(slots, torch.amax), "amax", lowest)[:, self.child_SN.flatten()]
        # among equals the first parent wins: the lowest rank in order of position, then type
        rank = torch.arange(self.child_SN.shape[0], device=logits.device).repeat_interleave(self.child_SN.shape[1])
        rank = rank.unsqueeze(-1) * logits.shape[-1] + torch.arange(logits.shape[-1], device=logits.device)
        last = rank.max() + 1
        rank = torch.where(slots == best, rank, last)
        first = self._reduce(self._over_types(rank, torch.amin), "amin", last)[:, self.child_SN.flatten()]
        return self._fill((rank == first).to(logits.dtype).view_as(logits), 0.0)

    def max_min(self, logits: Tensor) -> Tensor:
        """Couplings by place between the smallest and the largest logit: 0 to 1, 1 for all where they are equal.

        They are equal, too, where they lie so near that gradients of the places would overflow. At ties the gradient
        of the smallest and the largest logit goes to the first parent.
        """
        largest = self._picked(logits, self.assign(logits))
        smallest = self._picked(logits, self.assign(-logits))
        are_equal = largest - smallest <= least_length(logits.dtype)
        spread = torch.where(are_equal, torch.ones_like(largest), largest - smallest)
        coupling = torch.where(are_equal, torch.ones_like(logits), (logits - smallest) / spread)
        return self._fill(coupling, 0.0)

    def where_takes_part(self, values: Tensor) -> Tensor:
        """Values of pairs of a child and a parent, 0 where the child does not vote or the parent does not take part."""
        return self._fill(values, 0.0)

    def log_partition(self, logits: Tensor, weight: Tensor | None = None) -> Tensor:
        r"""Sum over children of :math:`w_i \ln \sum_j \exp b_{ij}`, per example.

        One logarithm for each softmax: under "window" the sum is also over the windows of a child, under "position"
        over its types.

        Shapes:
            logits: as in softmax; weight: (B, I) or None for ones; the result (B,)
        """
        lowest = torch.finfo(logits.dtype).min
        totals = self._over_types(self._fill(logits, lowest), torch.logsumexp)
        if self.child_SN is not None:
            totals = self._over_windows(totals.flatten(1, -2))
        elif weight is not None:
            weight = self.votes.slots(weight)
        totals = torch.where(totals > lowest / 2, totals, torch.zeros_like(totals))
        return (totals if weight is None else totals * weight.unsqueeze(-1)).flatten(1).sum(1)

    def _fill(self, values: Tensor, fill: float) -> Tensor:
        return values if self.takes_part is None else torch.where(self.takes_part, values, fill)

    def _over_types(self, values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Reduced over the types that compete: (..., J) -> (..., 1), or left alone where each is by itself."""
        return reduce(values, -1, keepdim=True) if self.types_compete else values

    def _reduce(self, slots: Tensor, how: str, start: float | Tensor) -> Tensor:
        """Extreme over all slots that hold a child: (B, S * N, types) -> (B, I, types)."""
        assert self.child_SN is not None
        index = self.child_SN.view(-1, 1).expand_as(slots)
        out = torch.zeros_like(slots[:, :1]).expand(-1, self.votes.num_children, -1) + start
        return out.scatter_reduce(1, index, slots, how)

    def _picked(self, values: Tensor, chosen: Tensor) -> Tensor:
        """The value of the one pair that is chosen for each softmax: (..., J) -> (..., 1), or (..., J) by types."""
        picked = torch.where(chosen > 0, values, torch.zeros_like(values))
        if self.child_SN is None:
            return picked.sum(-1, keepdim=True)
        index = self.child_SN.flatten()
        slots = self._over_types(picked.flatten(1, -2), torch.sum)
        total = slots.new_zeros(slots.shape[0], self.votes.num_children, slots.shape[-1]).index_add(1, index, slots)
        return total[:, index].view(*values.shape[:-1], slots.shape[-1])

    def _softmax_over_types(self, logits: Tensor) -> Tensor:
        """Shares of the types of each window."""
        if not self.leaky:
            return logits.softmax(-1)
        leak = torch.zeros_like(logits[..., :1])
        return torch.cat([logits, leak], -1).softmax(-1)[..., :-1]

    def _softmax_over_windows(self, logits: Tensor) -> Tensor:
        """Shares of all slots that hold a child; shifted first, so that a large logit costs no digits."""
        assert self.child_SN is not None
        index = self.child_SN.flatten()
        slots = logits.flatten(1, -2)
        lowest = 0.0 if self.leaky else torch.finfo(slots.dtype).min
        largest = self._reduce(self._over_types(slots.detach(), torch.amax), "amax", lowest)
        scaled = (slots - largest[:, index]).exp()
        total = (-largest).exp() if self.leaky else torch.zeros_like(largest)
        total = total.index_add(1, index, self._over_types(scaled, torch.sum))
        return (scaled / total[:, index]).view_as(logits)

    def _over_windows(self, per_slot: Tensor) -> Tensor:
        """Log of the sum of exponentials over all slots that hold a child: (B, S * N, types) -> (B, I, types)."""
        assert self.child_SN is not None
        index = self.child_SN.flatten()
        largest = self._reduce(per_slot.detach(), "amax", torch.finfo(per_slot.dtype).min)
        scaled = (per_slot - largest[:, index]).exp()
        total = torch.zeros_like(largest).index_add(1, index, scaled)
        return largest + total.clamp_min(torch.finfo(total.dtype).tiny).log()
