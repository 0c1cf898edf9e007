"""What to recommend to people, and which of their items formed the interest behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.checks import check_count
from torchcaps.models import Recommender
from torchcaps.retrieval.index import ItemIndex
from torchcaps.retrieval.merging import merge_diverse
from torchcaps.tasks.ranking import NO_ITEM

MORE = 5  # times as many candidates as are wanted, where categories decide as well


class Recommended(NamedTuple):
    """An item for a person: what it is, how well it fits, and the interest that likes it best, from 0 on."""

    item: str
    title: str
    score: float
    interest: int


class Share(NamedTuple):
    """An item that a person used, and how much of it went into an interest: its coupling, from 0 to 1."""

    item: str
    title: str
    coupling: float


@dataclass(frozen=True, kw_only=True)
class Interest:
    """An interest of a person.

    Attributes:
        number: among the interests of the person, from 0 on.
        formed_by: items that were used, those first of which most went into this interest.
    """

    number: int
    formed_by: list[Share]


def recommend(
    model: Recommender,
    histories: Sequence[Sequence[Any]],
    k: int = 20,
    *,
    diversity: float = 0.0,
    index: ItemIndex | None = None,
    batch_size: int = 256,
) -> list[list[Recommended]]:
    """The k items that fit each person best, without those that were used.

    Args:
        model: a trained recommender.
        histories: names of the items of each person, from the first to the latest.
        k: how many; fewer where there are no more.
        diversity: lambda of ComiRec's controlled merging, what another category is worth; 0 for scores alone.
        index: an index of the model's items; without one all items are looked at.
        batch_size: people at a time.

    Example:
        >>> from torchcaps.models import create_model
        >>> model = create_model("youtube-dnn", num_classes=5)
        >>> [len(found) for found in recommend(model, [["1", "2"], ["5"]], k=4)]
        [3, 4]
    """
    check_count("k", k)
    results: list[list[Recommended]] = [[] for _ in histories]
    for where, part in model.preprocessing.parts(histories, batch_size):
        for place, found in zip(where.tolist(), _recommend(model, part, k, diversity, index), strict=True):
            results[place] = found
    return results


def _recommend(
    model: Recommender, histories: Sequence[Sequence[Any]], k: int, diversity: float, index: ItemIndex | None
) -> list[list[Recommended]]:
    numbers = model.preprocessing(histories).to(model.log_scale.device)
    interests_BJD, present_BJ = interests_of(model, numbers)
    num_candidates = k if diversity == 0 else MORE * k
    if index is None:
        with torch.inference_mode():
            found = model.find(interests_BJD, present_BJ, numbers, num_candidates)
    else:
        found = index.search(interests_BJD, num_candidates, present=present_BJ, leave_out=numbers)
    items, scores, whose = (part.cpu().numpy() for part in found[:3])
    categories = model.categories()
    if diversity and categories is None:
        raise ValueError("diversity is about the categories of items; train with feature_columns (--feature-columns)")
    results = []
    for row in range(len(items)):
        places = np.flatnonzero(items[row] != NO_ITEM)
        if diversity:
            assert categories is not None
            order = merge_diverse(scores[row, places], categories[items[row, places]], k, diversity=diversity)
            places = places[order]
        names, titles = model.preprocessing.items, model.labels
        results.append(
            [
                Recommended(names[n - 1], titles[n - 1], float(scores[row, p]), int(whose[row, p]))
                for p, n in zip(places.tolist(), items[row, places].tolist(), strict=True)
            ]
        )
    return results


@torch.no_grad()
def interests_of(model: Recommender, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Interests (B, J, D), scaled as they are compared with items, and which are there (B, J)."""
    model.eval()
    interests_BJD, present_BJ = model.interests(model.check(numbers))
    return model.log_scale.exp() * interests_BJD, present_BJ


@torch.inference_mode()
def explain_interests(model: Recommender, history: Sequence[Any], *, most: int = 10) -> list[Interest]:
    """Which items of a person formed which interest.

    Args:
        model: a trained recommender that tells how items became interests: mind, comirec-dr or comirec-sa.
        history: names of the items of the person, from the first to the latest.
        most: items of an interest that are told.
    """
    if not model.is_routed:
        raise ValueError(
            f"{model.name} makes one vector of all items; choose mind, comirec-dr or comirec-sa to explain"
        )
    numbers = model.preprocessing([history])
    result = model.eval().route(numbers)["interests"]
    present_J, coupling_TJ = model.present(model.check(numbers))[0], result.coupling[0]
    interests = []
    for interest in torch.nonzero(present_J).flatten().tolist():
        order = coupling_TJ[:, interest].argsort(descending=True, stable=True).tolist()
        shares = [
            Share(
                str(history[place]),
                model.labels[int(numbers[0, place]) - 1],
                round(float(coupling_TJ[place, interest]), 6),
            )
            for place in order[:most]
            if place < len(history) and coupling_TJ[place, interest] > 0
        ]
        interests.append(Interest(number=interest, formed_by=shares))
    return interests
