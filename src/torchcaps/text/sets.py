"""A text as capsules, and what is told of two that were compared."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    """A capsule of a text: the words that it holds more than any other capsule, in their order, and its share."""

    words: tuple[str, ...]
    share: float


class Match(NamedTuple):
    """A part of a text that goes to a part of another one, how much of the texts that is, and how alike they are."""

    first: Part
    second: Part
    share: float
    similarity: float


class Found(NamedTuple):
    """A text of a corpus: its place there, how alike it is, and which parts matched, what counts most first."""

    place: int
    text: str
    similarity: float
    matches: tuple[Match, ...]


class CapsuleSet(NamedTuple):
    """A text as capsules.

    Shapes:
        poses: (K, E), of length 1
        shares: (K,), which add up to 1
        coupling: (T, K), of the sub-words
        whole: (E,), of length 1: the mean of all tokens
    """

    text: str
    poses: np.ndarray
    shares: np.ndarray
    coupling: np.ndarray
    whole: np.ndarray


def stacked(sets: Sequence[CapsuleSet]) -> tuple[np.ndarray, np.ndarray]:
    """Poses and shares of many texts, with empty capsules where a text has fewer: (n, K, E), (n, K)."""
    if not sets:
        return np.zeros((0, 1, 1), np.float32), np.zeros((0, 1))
    most, size = max(len(each.shares) for each in sets), sets[0].poses.shape[1]
    poses, shares = np.zeros((len(sets), most, size), np.float32), np.zeros((len(sets), most))
    for number, each in enumerate(sets):
        poses[number, : len(each.shares)], shares[number, : len(each.shares)] = each.poses, each.shares
    return poses, shares
