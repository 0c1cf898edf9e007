"""A recommender for the interactions at hand: its items, and their features where there are any."""

from typing import Any

from torchcaps.data.interactions import Interactions
from torchcaps.inputs.histories import HistoryEncoding
from torchcaps.models import Recommender, create_model


def new_recommender(name: str, interactions: Interactions, **model_options: Any) -> Recommender:
    """An untrained model that knows the items of the interactions.

    Args:
        name: of the model, see `torchcaps.models.list_models("user")`.
        interactions: whose items can be recommended.
        **model_options: arguments of the model.
    """
    numbers: dict[str, int] = {}
    features = [[numbers.setdefault(value, len(numbers) + 1) for value in own] for own in interactions.features]
    model = create_model(
        name,
        num_classes=len(interactions.item_names),
        num_features=len(numbers),
        features_per_item=max(map(len, features), default=0),
        **model_options,
    )
    if not isinstance(model, Recommender):
        raise ValueError(f"{name} does not recommend items; choose a model for users, see `torchcaps models`")
    model.set_features(features)
    model.preprocessing = HistoryEncoding(items=interactions.item_names, max_length=model.max_length)
    model.labels = interactions.titles
    return model
