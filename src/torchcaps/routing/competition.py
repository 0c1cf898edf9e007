r"""Who competes for a child: the softmax over the parents it reaches."""

import torch
from torch import Tensor

from torchcaps.votes import Votes

KINDS = ("window", "global")


class Competition:
    r"""Normalises logits over parents: :math:`c_{ij} = \exp b_{ij} / \sum_{j'} \exp b_{ij'}`, never over children.

    Under "window" a child shares itself among the parent types of each window it lies in, window by window; under
    "global" among all positions and types that see it, once. Dense votes have one window, so the two are the same.
    A masked child, and a slot of a position that does not exist, has coupling 0.

    Args:
        votes: the description whose children compete.
        kind: "window" or "global".
        leaky: an extra parent with logit 0 joins and its share is dropped.
        partial: (J,), the parent types that take part (partial normalisation), or None for all.
    """

    def __init__(self, votes: Votes, kind: str, *, leaky: bool = False, partial: Tensor | None = None) -> None:
        self.votes = votes
        self.leaky = leaky
        slot_mask = votes.slot_mask()
        self.takes_part = None if slot_mask is None else slot_mask.unsqueeze(-1)
        if partial is not None:
            self.takes_part = partial if self.takes_part is None else self.takes_part & partial
        self.child_SN = votes.windows.children(votes.example.device) if votes.windows and kind == "global" else None

    def softmax(self, logits: Tensor) -> Tensor:
        """Couplings of the given logits.

        Shapes:
            logits: (B, I, J) or (B, *positions, slots, J); the result alike
        """
        logits = self._fill(logits, torch.finfo(logits.dtype).min)
        if self.child_SN is not None:
            coupling = self._softmax_over_windows(logits)
        elif self.leaky:
            leak = torch.zeros_like(logits[..., :1])
            coupling = torch.cat([logits, leak], -1).softmax(-1)[..., :-1]
        else:
            coupling = logits.softmax(-1)
        return self._fill(coupling, 0.0)

    def assign(self, logits: Tensor) -> Tensor:
        """Couplings of 0 or 1 to the largest logit, ties to the first parent (the limit of a softmax)."""
        lowest = torch.finfo(logits.dtype).min
        logits = self._fill(logits.detach(), lowest)
        if self.child_SN is None:
            coupling = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
            return self._fill(coupling, 0.0)
        slots = logits.flatten(1, -2)
        best = self._reduce(slots.amax(-1), "amax", lowest)[:, self.child_SN.flatten()]
        # among equals the first parent wins: the lowest rank in order of position, then type
        rank = torch.arange(self.child_SN.shape[0], device=logits.device).repeat_interleave(self.child_SN.shape[1])
        rank = rank.unsqueeze(-1) * logits.shape[-1] + torch.arange(logits.shape[-1], device=logits.device)
        last = rank.max() + 1
        rank = torch.where(slots == best.unsqueeze(-1), rank, last)
        first = self._reduce(rank.amin(-1), "amin", last)[:, self.child_SN.flatten()]
        return self._fill((rank == first.unsqueeze(-1)).to(logits.dtype).view_as(logits), 0.0)

    def log_partition(self, logits: Tensor, weight: Tensor | None = None) -> Tensor:
        r"""Sum over children of :math:`w_i \ln \sum_j \exp b_{ij}`, per example.

        Shapes:
            logits: as in softmax; weight: (B, I) or None for ones; the result (B,)
        """
        lowest = torch.finfo(logits.dtype).min
        per_slot = self._fill(logits, lowest).logsumexp(-1)
        if self.child_SN is not None:
            per_child = self._over_windows(per_slot.flatten(1))
        else:
            per_child = per_slot
            weight = None if weight is None else self.votes.slots(weight)
        per_child = torch.where(per_child > lowest / 2, per_child, torch.zeros_like(per_child))
        return (per_child if weight is None else per_child * weight).flatten(1).sum(1)

    def _fill(self, values: Tensor, fill: float) -> Tensor:
        return values if self.takes_part is None else torch.where(self.takes_part, values, fill)

    def _reduce(self, slots: Tensor, how: str, start: float | Tensor) -> Tensor:
        """Extreme over all slots that hold a child: (B, S * N) -> (B, I)."""
        assert self.child_SN is not None
        index = self.child_SN.flatten().expand_as(slots)
        out = torch.zeros_like(slots[:, :1]).expand(-1, self.votes.num_children) + start
        return out.scatter_reduce(1, index, slots, how)

    def _softmax_over_windows(self, logits: Tensor) -> Tensor:
        """Shares of all slots that hold a child; shifted first, so that a large logit costs no digits."""
        assert self.child_SN is not None
        index = self.child_SN.flatten()
        slots = logits.flatten(1, -2)
        largest = self._reduce(slots.detach().amax(-1), "amax", 0.0 if self.leaky else torch.finfo(slots.dtype).min)
        scaled = (slots - largest[:, index].unsqueeze(-1)).exp()
        total = (-largest).exp() if self.leaky else torch.zeros_like(largest)
        total = total.index_add(1, index, scaled.sum(-1))
        return (scaled / total[:, index].unsqueeze(-1)).view_as(logits)

    def _over_windows(self, per_slot: Tensor) -> Tensor:
        """Log of the sum of exponentials over all slots that hold a child: (B, S * N) -> (B, I)."""
        assert self.child_SN is not None
        index = self.child_SN.flatten()
        largest = self._reduce(per_slot.detach(), "amax", torch.finfo(per_slot.dtype).min)
        scaled = (per_slot - largest[:, index]).exp()
        total = torch.zeros_like(largest).index_add(1, index, scaled)
        return largest + total.clamp_min(torch.finfo(total.dtype).tiny).log()
