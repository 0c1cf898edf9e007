"""Who used what, in order of time; and examples made of it: what was used before, and what is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

NO_ITEM = 0  # the number of padding; items are numbered from 1 on


@dataclass(frozen=True, kw_only=True, eq=False)
class Interactions:
    """Who used what, person by person in order of time.

    Attributes:
        items: numbers of items, from 1 on; those of a person stand together.
        starts: where each person's items start, and the end of all.
        user_names: of the people.
        item_names: of the items, from item 1 on.
        titles: what people call the items; the names where there is nothing else.
        features: what is known of each item, values such as "genre=comedy"; the first is its category.

    Shapes:
        items: int64 (n,); starts: int64 (people + 1,)

    Example:
        >>> rows = [("ann", "tea", 2), ("bob", "tea", 1), ("ann", "milk", 1)]
        >>> found = Interactions.of(*zip(*rows))
        >>> found.user_names, [found.item_names[number - 1] for number in found.history("ann")]
        (('ann', 'bob'), ['milk', 'tea'])
    """

    items: np.ndarray
    starts: np.ndarray
    user_names: tuple[str, ...]
    item_names: tuple[str, ...]
    titles: tuple[str, ...] = ()
    features: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.items) == 0:
            raise ValueError("there are no interactions; at least one person must have used an item")
        if not self.titles:
            object.__setattr__(self, "titles", self.item_names)

    @classmethod
    def of(
        cls,
        users: Sequence,
        items: Sequence,
        times: Sequence[float] | np.ndarray | None = None,
        *,
        titles: Mapping[str, str] | None = None,
        features: Mapping[str, Sequence[str]] | None = None,
    ) -> "Interactions":
        """From one row for each use; people and items are numbered in order of their first row.

        Args:
            users, items: of each row, anything that can be written.
            times: of each row; without them rows are in order. Equal times keep the order of the rows.
            titles, features: of items by name.
        """
        if not len(users) == len(items) or (times is not None and len(times) != len(users)):
            raise ValueError("users, items and times must have one entry for each use")
        user_codes, user_names = number(users)
        item_codes, item_names = number(items)
        order = np.argsort(user_codes, kind="stable")
        if times is not None:
            order = np.lexsort((np.asarray(times), user_codes))
        counts = np.bincount(user_codes, minlength=len(user_names))
        return cls(
            items=item_codes[order] + 1,
            starts=np.concatenate([[0], np.cumsum(counts)]),
            user_names=user_names,
            item_names=item_names,
            titles=tuple((titles or {}).get(name, name) for name in item_names),
            features=tuple(tuple((features or {}).get(name, ())) for name in item_names) if features else (),
        )

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def users(self) -> dict[str, int]:
        """The number of each person, from 0 on."""
        return {name: place for place, name in enumerate(self.user_names)}

    def history(self, user: str) -> np.ndarray:
        """The items of a person, from the first to the latest."""
        place = self.users.get(str(user))
        if place is None:
            raise ValueError(
                f"nobody is called {str(user)!r} among the {len(self.user_names)} people of these data; give items "
                "that the person used"
            )
        return self.items[self.starts[place] : self.starts[place + 1]]

    def without_rare(self, least_count: int) -> "Interactions":
        """Without items that were used less often, and people who then have none left."""
        counts = np.bincount(self.items, minlength=len(self.item_names) + 1)
        is_kept = counts >= least_count
        is_kept[NO_ITEM] = False
        if is_kept[1:].all():
            return self
        kept = np.flatnonzero(is_kept) - 1
        numbers = np.cumsum(is_kept) * is_kept
        rows = is_kept[self.items]
        users = np.repeat(np.arange(len(self.user_names)), np.diff(self.starts))[rows]
        sizes = np.bincount(users, minlength=len(self.user_names))
        there = np.flatnonzero(sizes)
        return replace(
            self,
            items=numbers[self.items[rows]],
            starts=np.concatenate([[0], np.cumsum(sizes[there])]),
            user_names=tuple(self.user_names[place] for place in there),
            item_names=tuple(self.item_names[place] for place in kept),
            titles=tuple(self.titles[place] for place in kept),
            features=tuple(self.features[place] for place in kept) if self.features else (),
        )


def number(names: Sequence) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names as numbers in order of their first appearance, and the names."""
    codes: dict[str, int] = {}
    numbers = np.fromiter((codes.setdefault(str(name), len(codes)) for name in names), np.int64, len(names))
    return numbers, tuple(codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class HistorySet:
    """Examples of what people used before and what is asked for: items[start:end], and items[end:stop].

    What is asked for again or was used before is not asked for: it is left out of recommendations.

    Attributes:
        interactions: where the items are.
        starts, ends, stops: of each example.
        is_training: every example asks for one item and histories may be cut to what a model reads.

    Shapes:
        starts, ends, stops: int64 (n,)
    """

    kind: ClassVar[str] = "user"

    interactions: Interactions
    starts: np.ndarray
    ends: np.ndarray
    stops: np.ndarray
    is_training: bool = False
    labels: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if len(self.starts) == 0:
            raise ValueError("there are no examples: nobody has used enough items to be asked about one")
        items = self.interactions.items
        if self.is_training:
            object.__setattr__(self, "labels", items[self.ends][:, None])
            return
        wanted = [
            np.setdiff1d(items[end:stop], items[start:end])
            for start, end, stop in zip(self.starts, self.ends, self.stops, strict=True)
        ]
        labels = np.full((len(wanted), max(map(len, wanted))), NO_ITEM, np.int64)
        for row, numbers in zip(labels, wanted, strict=True):
            row[: len(numbers)] = numbers
        object.__setattr__(self, "labels", labels)

    @property
    def is_multi_label(self) -> bool:
        """No: what is asked for are numbers of items."""
        return False

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the items are called."""
        return self.interactions.titles

    @cached_property
    def inputs(self) -> list[list[str]]:
        """The names of the items that were used before."""
        names = self.interactions.item_names
        return [[names[place - 1] for place in self[index][0]] for index in range(len(self))]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the items that were used before, and of those that are asked for."""
        return self.interactions.items[self.starts[index] : self.ends[index]], self.labels[index]

    def subset(self, indices: "Sequence[int] | np.ndarray") -> "HistorySet":
        """The examples with these numbers, in this order."""
        chosen = np.asarray(indices)
        return replace(self, starts=self.starts[chosen], ends=self.ends[chosen], stops=self.stops[chosen])

    def relabelled(self, labels: np.ndarray, class_names: tuple[str, ...]) -> "HistorySet":
        """Refused: what is asked for follows from what was used."""
        raise ValueError("what is asked for follows from the interactions; it cannot be relabelled")
