"""People with several interests: MIND and the two forms of ComiRec."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.models.recommender import Recommender
from torchcaps.models.registry import register_model
from torchcaps.nn import MultiInterest, create_routing
from torchcaps.routing import RoutingResult
from torchcaps.tasks.ranking import NO_ITEM

DETACHED = {"detach_couplings": True}  # of dynamic routing: both papers' models are trained so


class Interests(Recommender):
    """A recommender whose interests a `MultiInterest` finds.

    Args:
        num_interests: J, of a person at most.
        **options: see Recommender.
    """

    layer: MultiInterest

    def __init__(self, *, num_interests: int = 4, **options: Any) -> None:
        super().__init__(num_interests=num_interests, **options)
        self.num_interests = num_interests

    def route(self, histories: Tensor, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        """How the items of people became interests."""
        histories = self.check(histories)
        items_BTK = self.item_vectors(histories)
        return {"interests": self.layer.route(items_BTK, histories != NO_ITEM, return_trace=return_trace)}

    def present(self, histories: Tensor) -> Tensor:
        return self.layer.present(histories != NO_ITEM)


def routing_of(name: str, options: Mapping[str, Any] | None):
    """A routing by name; dynamic routing detaches couplings unless told otherwise."""
    return create_routing(name, **((DETACHED if name == "dynamic" else {}) | dict(options or {})))


@register_model("mind")
class Mind(Interests):
    """One matrix, routing from random logits, as many interests as a history allows (Li et al. 2019).

    Args:
        num_interests: at most.
        routing, routing_options: of the interests.
        initial_logits: "random" or "learned".
        dynamic: fewer interests for those with few items.
        hidden_size: of the ReLU layer above the interests; 0 for none, as in ComiRec's comparison.
        **options: see Recommender.
    """

    def __init__(
        self,
        *,
        num_interests: int = 4,
        routing: str = "dynamic",
        routing_options: Mapping[str, Any] | None = None,
        initial_logits: str = "random",
        dynamic: bool = True,
        hidden_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            num_interests=num_interests,
            routing=routing,
            routing_options=routing_options,
            initial_logits=initial_logits,
            dynamic=dynamic,
            hidden_size=hidden_size,
            **options,
        )
        self.layer = MultiInterest(
            self.item_size,
            self.item_size,
            num_interests,
            routing=routing_of(routing, routing_options),
            max_length=self.max_length,
            dynamic=dynamic,
            initial_logits=initial_logits,
        )
        _near_identity(self.layer)
        self.hidden = None
        if hidden_size:
            self.hidden = nn.Sequential(
                nn.Linear(self.item_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, self.item_size)
            )

    def interests(self, histories: Tensor) -> tuple[Tensor, Tensor]:
        poses_BJD, present_BJ = super().interests(histories)
        if self.hidden is not None:
            poses_BJD = torch.where(present_BJ.unsqueeze(-1), self.hidden(poses_BJD), 0.0)
        return poses_BJD, present_BJ


@register_model("comirec-dr")
class ComiRecDR(Interests):
    """A matrix for each place and interest, dynamic routing (Cen et al. 2020).

    Args:
        num_interests: of everybody.
        routing, routing_options: of the interests.
        **options: see Recommender.
    """

    def __init__(
        self,
        *,
        num_interests: int = 4,
        routing: str = "dynamic",
        routing_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_interests=num_interests, routing=routing, routing_options=routing_options, **options)
        self.layer = MultiInterest(
            self.item_size,
            self.item_size,
            num_interests,
            routing=routing_of(routing, routing_options),
            maps="positions",
            max_length=self.max_length,
            initial_logits="zero",
        )
        _near_identity(self.layer)


@register_model("comirec-sa")
class ComiRecSA(Interests):
    """Each interest is a mean of the items, weighted by attention; nothing is routed (Cen et al. 2020).

    Args:
        num_interests: of everybody.
        hidden_size: of the attention; 4 times item_size if left out.
        **options: see Recommender.
    """

    def __init__(self, *, num_interests: int = 4, hidden_size: int | None = None, **options: Any) -> None:
        super().__init__(num_interests=num_interests, hidden_size=hidden_size, **options)
        self.layer = MultiInterest(
            self.item_size,
            self.item_size,
            num_interests,
            maps="attention",
            max_length=self.max_length,
            hidden_size=hidden_size,
        )


@torch.no_grad()
def _near_identity(layer: MultiInterest) -> None:
    """Interests start in the space of the items with which they are compared."""
    layer.weight.mul_(0.5).add_(torch.eye(layer.item_size, device=layer.weight.device))
