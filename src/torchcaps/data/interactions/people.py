"""People with known interests: what a recommender finds can be held against the truth."""

from typing import NamedTuple

import numpy as np

from torchcaps.checks import check_count
from torchcaps.data.interactions.sets import Interactions

TIME_STEP = 1.0


class People(NamedTuple):
    """Generated people.

    Shapes:
        groups: int64 (items,), the group of each item, from item 1 on
        interests: int64 (people, most), the groups that each person likes; -1 where there are fewer
    """

    interactions: Interactions
    groups: np.ndarray
    interests: np.ndarray


def generate_people(
    num_people: int = 1000,
    *,
    num_items: int = 400,
    num_groups: int = 20,
    most_interests: int = 4,
    mean_length: int = 20,
    noise: float = 0.05,
    seed: int = 0,
) -> People:
    """People who like one to `most_interests` groups of items and go back and forth between them.

    An item is taken once; within a group some items are taken more often than others (as 1 over their rank). Lengths of
    histories are geometric around their mean, at least 5.

    Args:
        num_people: how many.
        num_items: in all; they are dealt to the groups in turn.
        num_groups: of items.
        most_interests: of a person; 1 to this number are equally likely.
        mean_length: items of a person, on average.
        noise: share of items that are taken from anywhere.
        seed: of everything.

    Example:
        >>> people = generate_people(50, num_items=100, num_groups=5)
        >>> len(people.interactions.user_names), people.groups[:6].tolist(), people.interests.shape
        (50, [0, 1, 2, 3, 4, 0], (50, 4))
    """
    for name, value in (("num_people", num_people), ("num_items", num_items), ("mean_length", mean_length)):
        check_count(name, value)
    if not 1 <= most_interests <= num_groups <= num_items:
        raise ValueError(
            "there must be at least as many items as groups, and as many groups as a person has interests, got "
            f"{num_items} items, {num_groups} groups and {most_interests} interests"
        )
    draws = np.random.default_rng(seed)
    groups = np.arange(num_items) % num_groups
    ranks = np.arange(num_items) // num_groups
    members = [np.flatnonzero(groups == group) for group in range(num_groups)]
    chances = [(1 / (1 + ranks[own])) / (1 / (1 + ranks[own])).sum() for own in members]
    interests = np.full((num_people, most_interests), -1)
    users, items = [], []
    for person in range(num_people):
        own = draws.choice(num_groups, draws.integers(1, most_interests + 1), replace=False)
        interests[person, : len(own)] = own
        length = max(5, int(draws.geometric(1 / mean_length)))
        picked = own[draws.integers(len(own), size=length)]
        taken = np.empty(length, np.int64)
        for group in own:
            where = np.flatnonzero(picked == group)
            taken[where] = draws.choice(members[group], len(where), p=chances[group])
        strays = draws.random(length) < noise
        taken[strays] = draws.integers(num_items, size=strays.sum())
        _, first = np.unique(taken, return_index=True)
        taken = taken[np.sort(first)]
        users.append(np.full(len(taken), person))
        items.append(taken)
    user_numbers, item_numbers = np.concatenate(users), np.concatenate(items)
    names = tuple(f"item-{place}" for place in range(num_items))
    counts = np.bincount(user_numbers, minlength=num_people)
    found = Interactions(
        items=item_numbers + 1,
        starts=np.concatenate([[0], np.cumsum(counts)]),
        user_names=tuple(f"person-{place}" for place in range(num_people)),
        item_names=names,
        features=tuple((f"group={group}",) for group in groups),
    )
    return People(found, groups, interests)
