"""`torchcaps recommend`."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from torchcaps.cli.evaluate import run_config

if TYPE_CHECKING:
    from torchcaps.models import Recommender


@dataclass(frozen=True, kw_only=True)
class Recommend:
    """Items for a person: somebody of the data of a run, or anybody who used the given items.

    Prints one line for each: item, title if it has one, score, and the interest that likes it best. What was used is
    left out.
    """

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder of `torchcaps train --task recommend`, or a saved recommender."""

    user: str | None = None
    """Who, as the data call them."""

    items: tuple[str, ...] = ()
    """Instead of a user: items that somebody used, from the first to the latest."""

    k: int = 20
    """How many items."""

    explain: bool = False
    """Show which items formed which interest."""

    diversity: float = 0.0
    """What another category is worth beside the score; 0 for scores alone."""

    index: bool = False
    """Search in an index instead of looking at every item (needs the extra: pip install 'torchcaps[retrieval]')."""

    data: str | None = None
    """Name or path of the interactions that hold the user; by default those of the run."""

    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> None:
        """Print the recommendations."""
        from torchcaps.models import Recommender
        from torchcaps.predictor import load
        from torchcaps.retrieval import ItemIndex, explain_interests, recommend

        model = load(self.run_folder).model
        if not isinstance(model, Recommender):
            raise ValueError(f"{self.run_folder} holds a {model.name}, which recommends nothing; use torchcaps predict")
        history = self.history(model)
        index = ItemIndex(model) if self.index else None
        found = recommend(model, [history], self.k, diversity=self.diversity, index=index)[0]
        interests = explain_interests(model, history) if self.explain else []
        if self.json:
            result: dict[str, Any] = {"user": self.user, "recommended": [each._asdict() for each in found]}
            if self.explain:
                result["interests"] = [
                    {"number": each.number, "formed_by": [share._asdict() for share in each.formed_by]}
                    for each in interests
                ]
            print(json.dumps(result, ensure_ascii=False))
            return
        for interest in interests:
            formed = ", ".join(f"{share.title} ({share.coupling:.2f})" for share in interest.formed_by)
            print(f"interest {interest.number + 1} was formed by: {formed or 'nothing'}")
        for each in found:
            title = "" if each.title == each.item else f"\t{each.title}"
            print(f"{each.item}{title}\t{each.score:.4f}\tinterest {each.interest + 1}")

    def history(self, model: "Recommender") -> list[str]:
        """What the person used."""
        from torchcaps.data.interactions import load_interactions

        if (self.user is None) == (not self.items):
            raise ValueError("say who: --user of the data, or --items that somebody used")
        if self.user is None:
            return list(self.items)
        config = run_config(self.run_folder)
        name = self.data or (model.card.get("dataset") if config is None else config.data)
        if name is None:
            raise ValueError(f"{self.run_folder} does not say what it was trained on; give --data NAME or PATH")
        interactions = load_interactions(name, None if config is None else config.interactions)
        names = interactions.item_names
        if config is not None:  # items that are too rare for the model
            known = model.preprocessing.numbers
            return [n for number in interactions.history(self.user) if (n := names[number - 1]) in known]
        return [names[number - 1] for number in interactions.history(self.user)]
