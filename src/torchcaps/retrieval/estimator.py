"""A recommender for people with a table: `fit(interactions)`, `recommend(users, k)`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from torchcaps.data.interactions import InteractionOptions, Interactions, from_columns, split_interactions
from torchcaps.models import Recommender, load_model
from torchcaps.retrieval.index import ItemIndex
from torchcaps.retrieval.recommending import Interest, Recommended, explain_interests, recommend
from torchcaps.retrieval.scoring import score_recommender
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.recommend import new_recommender


class InterestRecommender:
    """Learns from a table of who used what, and recommends.

    Args:
        model: "mind", "comirec-dr", "comirec-sa", or a baseline: "youtube-dnn", "gru4rec", "popularity".
        model_options: its arguments, such as {"num_interests": 6, "routing": "kmeans"}.
        columns: where people, items and times are, and what is held out to choose the best epoch and to score.
        training: how to train.
        device: "cpu", or a kind of accelerator; "auto" takes the accelerator if there is one.

    Attributes:
        model_: the trained model.
        interactions_: what it was fitted to.
        scores_: recall and more on what was held out for the test.

    Example:
        >>> from torchcaps.data.interactions import generate_people
        >>> people = generate_people(60, num_items=40, num_groups=4)
        >>> recommender = InterestRecommender("popularity", training=TrainingConfig(epochs=1))
        >>> found = recommender.fit(people.interactions).recommend(["person-0"], k=3)
        >>> len(found[0])
        3
    """

    def __init__(
        self,
        model: str = "mind",
        *,
        model_options: Mapping[str, Any] | None = None,
        columns: InteractionOptions | None = None,
        training: TrainingConfig | None = None,
        device: str = "auto",
    ) -> None:
        self.model, self.model_options, self.columns = model, dict(model_options or {}), columns or InteractionOptions()
        self.training = training or TrainingConfig(epochs=10, batch_size=256, learning_rate=5e-3)
        self.device = device

    def fit(self, interactions: Any) -> Self:
        """Train on a data frame (or a mapping of columns), or on Interactions."""
        if not isinstance(interactions, Interactions):
            interactions = from_columns(interactions, self.columns)
        self.interactions_ = interactions.without_rare(self.columns.least_count)
        parts = split_interactions(self.interactions_, self.columns)
        torch.manual_seed(self.training.seed)
        model = new_recommender(self.model, self.interactions_, **self.model_options)
        fit(model, parts.train, parts.validation, self.training, device=self.device)
        self.model_ = model.cpu()
        assert parts.test is not None
        self.scores_ = score_recommender(self.model_, parts.test)
        return self

    def recommend(
        self,
        users: Sequence[Any] | None = None,
        k: int = 20,
        *,
        items: Sequence[Sequence[Any]] | None = None,
        diversity: float = 0.0,
        index: ItemIndex | None = None,
    ) -> list[list[Recommended]]:
        """What fits people best of what they did not use yet.

        Args:
            users: people of the table.
            k: how many items.
            items: instead of users, what people used whom the table does not know.
            diversity: see `torchcaps.retrieval.recommend`.
            index: of the model's items.
        """
        if (users is None) == (items is None):
            raise ValueError("give users of the table, or items that unknown people used")
        model = self._fitted()
        histories = [self.history(user) for user in users] if items is None else items  # pyrefly: ignore
        return recommend(model, histories, k, diversity=diversity, index=index)

    def explain(self, user: Any) -> list[Interest]:
        """Which items of a person formed which interest."""
        return explain_interests(self._fitted(), self.history(user))

    def history(self, user: Any) -> list[str]:
        """The names of what a person of the table used."""
        self._fitted()
        names = self.interactions_.item_names
        return [names[number - 1] for number in self.interactions_.history(str(user)).tolist()]

    def save(self, folder: str | Path) -> None:
        """Write the trained model to a folder, from which `load` reads it."""
        self._fitted().save_pretrained(folder)

    def load(self, folder: str | Path, interactions: Any) -> Self:
        """Take the model of a folder, and the people of a table."""
        model = load_model(folder)
        if not isinstance(model, Recommender):
            raise ValueError(f"{folder} holds a {model.name}, which recommends nothing")
        if not isinstance(interactions, Interactions):
            interactions = from_columns(interactions, self.columns)
        self.model_, self.interactions_ = model, interactions
        return self

    def _fitted(self) -> Recommender:
        if not hasattr(self, "model_"):
            raise ValueError("this recommender has learned nothing yet; call fit(interactions) first")
        return self.model_
