"""Items for people: what fits them, and how their interests formed."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch

from torchcaps.models import Recommender
from torchcaps.retrieval import interests_of, recommend
from torchcaps.service.refusals import Refusal
from torchcaps.service.requests import RecommendRequest
from torchcaps.service.results import (
    FormingStep,
    InterestFormed,
    ItemList,
    KnownItem,
    Recommendations,
    RecommendedItem,
    Recommending,
)

MOST_LISTED = 50


def check_items(model: Recommender, items: Sequence[str]) -> list[str]:
    """The items, if the model knows them all."""
    try:
        model.preprocessing.encode([items])
    except ValueError as error:
        raise Refusal(str(error)) from error
    return list(items)


def recommend_items(
    name: str, model: Recommender, histories: Sequence[Sequence[str]], *, k: int, diversity: float
) -> list[Recommendations]:
    """What fits each of some people, from one pass."""
    try:
        found = recommend(model, histories, k, diversity=diversity)
    except ValueError as error:  # such as diversity of items without categories
        raise Refusal(str(error)) from error
    return [
        Recommendations(model=name, recommended=[RecommendedItem(**each._asdict()) for each in own]) for own in found
    ]


def recommend_together(name: str, model: Recommender, questions: Sequence[RecommendRequest]) -> list[str | Exception]:
    """What is recommended to each, JSON or a refusal; equal questions about different people share a pass."""
    start = perf_counter()
    found: list[str | Exception] = ["" for _ in questions]
    groups: dict[tuple[int, float], list[int]] = {}
    for place, question in enumerate(questions):
        try:
            check_items(model, question.items)
            groups.setdefault((question.k, question.diversity), []).append(place)
        except Refusal as refusal:
            found[place] = refusal
    for (k, diversity), places in groups.items():
        try:
            answers = recommend_items(name, model, [questions[p].items for p in places], k=k, diversity=diversity)
        except Refusal as refusal:
            for place in places:
                found[place] = refusal
            continue
        for place, answer in zip(places, answers, strict=True):
            answer.milliseconds = round(1000 * (perf_counter() - start), 3)
            found[place] = answer.model_dump_json()
    return found


@torch.inference_mode()
def form_interests(name: str, model: Recommender, items: Sequence[str], *, k: int) -> Recommending:
    """How the items of a person became interests, step by step, and what each interest recommends by itself."""
    numbers = model.preprocessing([items])
    result = model.eval().route(numbers, return_trace=True)["interests"]
    assert result.trace is not None
    interests_1JD, present_1J = interests_of(model, numbers)
    there = torch.nonzero(present_1J[0]).flatten().tolist()
    alone_JJD = interests_1JD[0, there].unsqueeze(1)
    found = model.find(
        alone_JJD, torch.ones_like(alone_JJD[..., 0], dtype=torch.bool), numbers.expand(len(there), -1), k
    )
    titles = model.labels
    interests = [
        InterestFormed(
            number=interest,
            recommended=[
                RecommendedItem(
                    item=model.preprocessing.items[number - 1],
                    title=titles[number - 1],
                    score=round(score, 6),
                    interest=interest,
                )
                for number, score in zip(found.items[place].tolist(), found.scores[place].tolist(), strict=True)
                if number
            ],
        )
        for place, interest in enumerate(there)
    ]
    return Recommending(
        model=name,
        used=[titles[number - 1] for number in numbers[0].tolist()],
        steps=[
            FormingStep(couplings=step.coupling[0][:, there].numpy(), activations=step.activations[0, there].numpy())
            for step in result.trace
        ],
        interests=interests,
    )


def list_items(name: str, model: Recommender, wanted: str) -> ItemList:
    """Items whose name or title has these letters, the most used first."""
    wanted, names = wanted.strip().lower(), model.preprocessing.items
    counts = model.counts[1:].cpu().numpy()
    found = []
    for place in np.argsort(-counts, kind="stable").tolist():
        if wanted in model.labels[place].lower() or wanted in names[place].lower():
            found.append(KnownItem(item=names[place], title=model.labels[place]))
            if len(found) == MOST_LISTED:
                break
    return ItemList(model=name, items=found)
