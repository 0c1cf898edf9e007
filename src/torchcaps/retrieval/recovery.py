"""Whether the interests that were found are those that people have; for people whose interests are known."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from torchcaps.data.interactions import People
from torchcaps.models import Recommender
from torchcaps.retrieval.recommending import interests_of

BATCH = 256


def interest_recovery(
    model: Recommender, people: People, chosen: np.ndarray | None = None, *, depth: int = 10
) -> dict[str, float]:
    """How well interests match the groups that people like.

    An interest stands for the group that most of its `depth` best items belong to (those that were used included: it is
    about the interest, not about what is new). Interests are matched with the true groups one to one, such that as many
    of these items as possible lie in their group.

    Args:
        model: a trained recommender.
        people: whose groups are known; only those of which an item was used count as true.
        chosen: numbers of the people to ask about; all if left out.
        depth: best items of an interest.

    Returns:
        "recovered": share of true groups whose matched interest stands for them; "purity": share of the best items of
        matched interests that lie in their group; each averaged over people. "found": different groups that the
        interests of a person stand for, over the number of true ones.
    """
    interactions, names = people.interactions, people.interactions.item_names
    groups = np.concatenate([[-1], people.groups])
    places = np.arange(len(interactions.user_names)) if chosen is None else chosen
    numbers = np.array([0, *map(model.preprocessing.number, names)])
    back = np.argsort(numbers)
    vectors = model.item_vectors().detach()
    recovered, purity, found = [], [], []
    for start in range(0, len(places), BATCH):
        part = places[start : start + BATCH]
        histories = [interactions.items[interactions.starts[p] : interactions.starts[p + 1]] for p in part]
        width = max(map(len, histories))
        rows = np.stack([np.pad(numbers[history], (0, width - len(history))) for history in histories])
        interests, present = interests_of(model, torch.from_numpy(rows))
        scores = interests @ vectors[1:].T
        top = back[(scores.topk(min(depth, scores.shape[-1])).indices + 1).numpy()]
        for person, history, best, there in zip(part, histories, top, present.numpy(), strict=True):
            liked = people.interests[person]
            true = np.intersect1d(liked[liked >= 0], groups[history])
            shares = (groups[best[there]][:, :, None] == true).mean(1)  # (interests, true groups)
            if len(true) == 0 or len(shares) == 0:
                continue
            rows_found, columns = linear_sum_assignment(-shares)
            matched = shares[rows_found, columns]
            recovered.append((matched > 0.5).sum() / len(true))
            purity.append(matched.sum() / len(matched))
            found.append((shares > 0.5).any(0).sum() / len(true))
    return {
        "recovered": float(np.mean(recovered)),
        "purity": float(np.mean(purity)),
        "found": float(np.mean(found)),
    }
