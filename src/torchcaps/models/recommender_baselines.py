"""Recommenders without capsules: one vector for a person, or none at all."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_count
from torchcaps.models.recommender import OneInterest
from torchcaps.models.registry import register_model
from torchcaps.tasks.ranking import NO_ITEM


def latest(histories: Tensor, max_length: int) -> Tensor:
    """The latest items at the start, in order, padding after them: (B, T) -> (B, min(T, max_length))."""
    mask = histories != NO_ITEM
    place = mask.long().cumsum(1) - 1 - (mask.sum(1, keepdim=True) - max_length).clamp_min(0)
    length = min(histories.shape[1], max_length)
    index = torch.where(mask & (place >= 0), place, length)
    return histories.new_zeros(histories.shape[0], length + 1).scatter(1, index, histories)[:, :length]


@register_model("youtube-dnn")
class MeanPooling(OneInterest):
    """The mean of the items through a ReLU layer (Covington et al. 2016).

    Args:
        hidden_size: of the layer.
        **options: see Recommender.
    """

    def __init__(self, *, hidden_size: int = 64, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, **options)
        self.hidden = nn.Sequential(
            nn.Linear(self.item_size, check_count("hidden_size", hidden_size)),
            nn.ReLU(),
            nn.Linear(hidden_size, self.item_size),
        )

    def person(self, histories: Tensor) -> Tensor:
        items = latest(histories, self.max_length)
        count = (items != NO_ITEM).sum(1, keepdim=True).clamp_min(1)
        return self.hidden(self.item_vectors(items).sum(1) / count)


@register_model("gru4rec")
class GRU4Rec(OneInterest):
    """The last state of a GRU over the items (Hidasi et al. 2016).

    Args:
        hidden_size: of the state.
        **options: see Recommender.
    """

    def __init__(self, *, hidden_size: int = 64, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, **options)
        self.gru = nn.GRU(self.item_size, check_count("hidden_size", hidden_size), batch_first=True)
        self.to_item = nn.Linear(hidden_size, self.item_size)

    def person(self, histories: Tensor) -> Tensor:
        items = latest(histories, self.max_length)
        with torch.autocast(histories.device.type, enabled=False):  # not every CPU has a GRU in bfloat16
            states_BTH, _ = self.gru(self.item_vectors(items).float())  # what comes after the last item changes nothing
        last_B = ((items != NO_ITEM).sum(1) - 1).clamp_min(0)
        state_BH = states_BTH.gather(1, last_B[:, None, None].expand(-1, 1, states_BTH.shape[2])).squeeze(1)
        return self.to_item(state_BH)


@register_model("popularity")
class Popularity(OneInterest):
    """What most people used, for everybody; how much that says is all that is learned.

    Args:
        **options: see Recommender.
    """

    def __init__(self, *, item_size: int = 1, **options: Any) -> None:
        super().__init__(item_size=1, **options)
        self.items.weight.requires_grad_(False)

    def person(self, histories: Tensor) -> Tensor:
        return torch.ones(histories.shape[0], 1, device=histories.device)

    def present(self, histories: Tensor) -> Tensor:
        return torch.ones(histories.shape[0], 1, dtype=torch.bool, device=histories.device)

    def item_vectors(self, numbers: Tensor | None = None) -> Tensor:
        counts = self.counts if numbers is None else self.counts[numbers]
        return (counts + 1).log().unsqueeze(-1) / (self.counts.max() + 1).log().clamp_min(1.0)
