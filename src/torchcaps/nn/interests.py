"""Several interests of one person, from the items that were used: what MIND and ComiRec route."""

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, normalise
from torchcaps.checks import check_choice, check_count, check_mask, check_shape
from torchcaps.routing import DynamicRouting, Routing, RoutingResult
from torchcaps.routing.result import TraceStep
from torchcaps.votes import DenseVotes

MAPS = ("shared", "positions", "attention")
STARTS = ("random", "learned", "zero")
NUM_STARTS = (
    64  # positions with initial logits of their own where sequences may have any length; then from the first on
)


class MultiInterest(nn.Module):
    r"""The items of a person, routed into a few interests.

    An item competes for interests: couplings are a softmax over the interests of a person, never over the items, and
    no person of a batch sees another. Padding may lie anywhere; places are counted over real items, from the first
    that is kept, so that padding never changes a result.

    - `maps="shared"` (MIND, Li et al. 2019): one matrix for all items and all interests, for any number of items. Such
      votes do not tell interests apart; the initial logits do.
    - `maps="positions"` (ComiRec-DR, Cen et al. 2020): a matrix for each place and interest, for the latest
      `max_length` items.
    - `maps="attention"` (ComiRec-SA): no routing; interest k is :math:`\sum_i a_{ik} e_i` with
      :math:`a = softmax_i(W_2 \tanh(W_1 (e_i + p_i)))`, p the vector of a place.

    Args:
        item_size: K, entries of an item's vector.
        interest_size: D, entries of an interest.
        num_interests: J, at most.
        routing: an instance of its own, dynamic routing if left out; one with `detach_couplings=True` lets no gradient
            through the couplings, as both papers' code does.
        maps: "shared", "positions" or "attention".
        max_length: items that are kept, the latest; None for all.
        dynamic: a person with n items has max(1, min(J, floor(log2 n))) interests, as in MIND; the others are 0.
        initial_logits: "random" (drawn once, kept with the weights), "learned" (from such a start) or "zero"; one for
            each interest and place, the same for every person.
        hidden_size: of attention; 4 K if left out, as in the paper.

    Shapes:
        items: (B, T, K); mask: (B, T), False = padding
        interests: poses (B, J, D), activations (B, J) as the routing gives them; 0 for interests that are not there

    Example:
        >>> layer = MultiInterest(8, 16, 4, dynamic=True)
        >>> interests = layer(torch.randn(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
        >>> interests.poses.shape, (interests.activations > 0).sum(1)
        (torch.Size([2, 4, 16]), tensor([2, 1]))
    """

    start: Tensor | None

    def __init__(
        self,
        item_size: int,
        interest_size: int,
        num_interests: int,
        *,
        routing: Routing | None = None,
        maps: str = "shared",
        max_length: int | None = None,
        dynamic: bool = False,
        initial_logits: str = "random",
        hidden_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory = {"device": device, "dtype": dtype}
        self.item_size = check_count("item_size", item_size)
        self.interest_size = check_count("interest_size", interest_size)
        self.num_interests = check_count("num_interests", num_interests)
        self.maps, self.dynamic = check_choice("maps", maps, MAPS), dynamic
        self.max_length = None if max_length is None else check_count("max_length", max_length)
        self.initial_logits = check_choice("initial_logits", initial_logits, STARTS)
        if routing is not None and not isinstance(routing, Routing):
            raise TypeError(f"routing must be an instance such as DynamicRouting(), got {routing!r}")
        self.register_parameter("start", None)
        if maps == "attention":
            if routing is not None:
                raise ValueError("maps='attention' weighs items and routes nothing; leave out routing")
            self.routing = None
            hidden_size = check_count("hidden_size", 4 * item_size if hidden_size is None else hidden_size)
            self.hidden = nn.Linear(item_size, hidden_size, bias=False, **factory)
            self.weights = nn.Linear(hidden_size, num_interests, bias=False, **factory)
            self.places = None if max_length is None else nn.Parameter(torch.empty(max_length, item_size, **factory))
            self.to_interest = (
                None if item_size == interest_size else nn.Linear(item_size, interest_size, bias=False, **factory)
            )
        else:
            if hidden_size is not None:
                raise ValueError(f"hidden_size is of maps='attention'; leave it out with maps={maps!r}")
            if maps == "positions" and max_length is None:
                raise ValueError("maps='positions' has a matrix for each place; give max_length")
            owners = (max_length, num_interests) if maps == "positions" and max_length is not None else ()
            self.weight = nn.Parameter(torch.empty(*owners, item_size, interest_size, **factory))
            self.routing = DynamicRouting() if routing is None else routing
            self.routing.bind(num_interests, interest_size, child_size=item_size, **factory)
            if initial_logits != "zero":
                start = torch.empty(self.max_length or NUM_STARTS, num_interests, **factory)
                self.start = nn.Parameter(start, requires_grad=initial_logits == "learned")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew."""
        if self.maps == "attention":
            for layer in (self.hidden, self.weights, self.to_interest):
                if layer is not None:
                    layer.reset_parameters()
            if self.places is not None:
                nn.init.normal_(self.places, std=0.1)
            return
        nn.init.normal_(self.weight, std=self.item_size**-0.5)
        if self.start is not None:
            nn.init.normal_(self.start)
        assert self.routing is not None
        self.routing.reset_parameters()

    def forward(self, items: Tensor, mask: Tensor | None = None) -> Capsules:
        return self.route(items, mask).capsules

    def route(self, items: Tensor, mask: Tensor | None = None, *, return_trace: bool = False) -> RoutingResult:
        """The interests, and what every item gives to each: couplings (B, T, J), 0 for padding and what is not kept."""
        if items.dim() != 3 or items.shape[-1] != self.item_size:
            raise ValueError(f"items must have shape (B, T, {self.item_size}), got {tuple(items.shape)}")
        mask = items.new_ones(items.shape[:2], dtype=torch.bool) if mask is None else check_mask("mask", mask)
        check_shape("mask", mask, tuple(items.shape[:2]), "(B, T)")
        place_BT, kept_BT = self.places_of(mask)
        packed_BLK = self.pack(items, place_BT, kept_BT)
        there_BL = torch.arange(packed_BLK.shape[1], device=mask.device) < kept_BT.sum(1, keepdim=True)
        present_BJ = self.present(mask)
        if self.routing is None:
            result = self.attend(packed_BLK, there_BL, return_trace=return_trace)
        else:
            votes = self.votes(packed_BLK, there_BL, present_BJ if self.dynamic else None)
            result = self.routing(votes, initial_logits=self.first_logits(there_BL), return_trace=return_trace)
        return _unpacked(result, place_BT, kept_BT, present_BJ)

    def present(self, mask: Tensor) -> Tensor:
        """Which interests each person has: (B, T) -> (B, J); nobody without items has any."""
        num_items = mask.sum(1, keepdim=True)
        if self.max_length is not None:
            num_items = num_items.clamp_max(self.max_length)
        interests = torch.arange(1, self.num_interests + 1, device=mask.device)
        if not self.dynamic:
            return (num_items > 0).expand(-1, self.num_interests)
        # interest k is there if floor(log2 n) >= k, which is n >= 2^k; the first one from the first item on
        least = torch.where(interests == 1, 1, 2 ** interests.clamp_max(62))
        return num_items >= least

    def places_of(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each real item among those that are kept, and which are: (B, T) both."""
        place_BT = mask.long().cumsum(1) - 1
        if self.max_length is not None:
            place_BT = place_BT - (mask.sum(1, keepdim=True) - self.max_length).clamp_min(0)
        return place_BT, mask & (place_BT >= 0)

    def pack(self, items: Tensor, place: Tensor, kept: Tensor) -> Tensor:
        """The items that are kept, at their places: (B, T, K) -> (B, L, K), 0 after the last."""
        length = items.shape[1] if self.max_length is None else min(items.shape[1], self.max_length)
        index = torch.where(kept, place, length).unsqueeze(-1).expand_as(items)
        packed = items.new_zeros(items.shape[0], length + 1, items.shape[2])
        items = torch.where(kept.unsqueeze(-1), items, torch.zeros_like(items))  # padding may hold anything, NaN too
        return packed.scatter(1, index, items)[:, :length]

    def votes(self, items: Tensor, mask: Tensor, parent_mask: Tensor | None) -> DenseVotes:
        """What packed items (B, L, K) vote for."""
        assert self.routing is not None
        weight = self.weight
        if self.routing.normalise_weights:
            weight = normalise(weight.flatten(-2)).view_as(weight)
        children = Capsules(items, mask.to(items.dtype))
        if self.maps == "shared":
            weight = weight.expand(self.num_interests, -1, -1)
            return DenseVotes(children, weight, sharing="shared", mask=mask, parent_mask=parent_mask)
        return DenseVotes(children, weight[: items.shape[1]], mask=mask, parent_mask=parent_mask)

    def first_logits(self, mask: Tensor) -> Tensor | None:
        """Of every place and interest, the same for every person: (B, L, J)."""
        if self.start is None:
            return None
        places = torch.arange(mask.shape[1], device=mask.device) % len(self.start)
        return self.start[places].expand(mask.shape[0], -1, -1)

    def attend(self, items: Tensor, mask: Tensor, *, return_trace: bool) -> RoutingResult:
        """Interests as weighted means of packed items; here it is the items whose weights sum to 1."""
        placed = items if self.places is None else items + self.places[: items.shape[1]]
        logits_BLJ = self.weights(torch.tanh(self.hidden(placed)))
        logits_BLJ = logits_BLJ.masked_fill(~mask.unsqueeze(-1), torch.finfo(logits_BLJ.dtype).min)
        share_BLJ = torch.where(mask.unsqueeze(-1), logits_BLJ.softmax(1), 0.0)
        poses_BJD = share_BLJ.transpose(1, 2) @ items
        if self.to_interest is not None:
            poses_BJD = self.to_interest(poses_BJD)
        capsules = Capsules.from_poses(poses_BJD)
        trace = None
        if return_trace:
            step = share_BLJ, *capsules, poses_BJD.new_zeros(len(items))
            trace = (TraceStep(*(value.detach() for value in step)),)
        return RoutingResult(capsules, share_BLJ.detach(), trace)

    def extra_repr(self) -> str:
        parts = [f"{self.item_size} -> {self.num_interests} interests of {self.interest_size}", f"maps={self.maps!r}"]
        parts += [] if self.max_length is None else [f"max_length={self.max_length}"]
        parts += ["dynamic=True"] if self.dynamic else []
        return ", ".join(parts)


def label_aware_attention(
    interests: Tensor, items: Tensor, *, power: float = math.inf, present: Tensor | None = None
) -> Tensor:
    r"""The one vector of a person that an item is compared with: :math:`\sum_k softmax_k(s_k^p) v_k`, s_k = v_k . e.

    With p = 0 all interests count alike, with infinity the best one alone, as ComiRec trains (the first of equals).
    Powers keep the sign of s_k: an interest that speaks against an item never speaks for it.

    Args:
        interests: v.
        items: e, those that people took.
        power: p, 0 or at least 1.
        present: which interests there are; all if left out.

    Shapes:
        interests: (B, J, D); items: (B, D) -> (B, D); present: (B, J)

    Example:
        >>> interests = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> label_aware_attention(interests, torch.tensor([[0.2, 0.9]]))
        tensor([[0., 1.]])
    """
    if isinstance(power, bool) or not (power == 0 or power >= 1):
        raise ValueError(f"power must be 0 or at least 1, got {power!r}")
    scores_BJ = torch.einsum("bjd,bd->bj", interests, items)
    numbers = torch.finfo(scores_BJ.dtype)
    if not math.isinf(power):
        most = 0.5 * numbers.max ** (1 / max(power, 1))  # beyond it a power would not be finite
        scores_BJ = scores_BJ.sign() * scores_BJ.abs().clamp_max(most).pow(power) if power else 0 * scores_BJ
    if present is not None:
        scores_BJ = scores_BJ.masked_fill(~present, numbers.min)
    if math.isinf(power):
        best_B11 = scores_BJ.argmax(1)[:, None, None]
        return interests.gather(1, best_B11.expand(-1, 1, interests.shape[2])).squeeze(1)
    return torch.einsum("bj,bjd->bd", scores_BJ.softmax(1), interests)


def _unpacked(result: RoutingResult, place: Tensor, kept: Tensor, present: Tensor) -> RoutingResult:
    """Couplings where the items lie in the sequence, and nothing for interests that are not there."""

    def spread(coupling_BLJ: Tensor) -> Tensor:
        if coupling_BLJ.shape[1] == 0:
            return coupling_BLJ.new_zeros(*place.shape, coupling_BLJ.shape[2])
        index = place.clamp(0, coupling_BLJ.shape[1] - 1).unsqueeze(-1).expand(-1, -1, coupling_BLJ.shape[2])
        return torch.where(kept.unsqueeze(-1), coupling_BLJ.gather(1, index), 0.0)

    def of_present(poses: Tensor, activations: Tensor) -> Capsules:
        poses = torch.where(present.unsqueeze(-1), poses, torch.zeros_like(poses))
        return Capsules(poses, torch.where(present, activations, torch.zeros_like(activations)))

    trace = None
    if result.trace is not None:
        trace = tuple(
            TraceStep(spread(step.coupling), *of_present(step.poses, step.activations), step.objective)
            for step in result.trace
        )
    coupling = result.coupling if trace is None else result.trace[-1].coupling  # pyrefly: ignore
    return RoutingResult(of_present(*result.capsules), spread(coupling), trace)
