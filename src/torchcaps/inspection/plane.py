"""Votes in the plane of their two main directions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchcaps.inspection.routed import ClassRouting


class VotePlane(NamedTuple):
    """Votes for some classes and where they meet, with the same axes at every iteration.

    Attributes:
        classes: which, C of them.

    Shapes:
        children: (P,), numbers of the children that are shown
        votes: (P, C, 2)
        couplings: (S, P, C)
        centres: (S, C, 2), of the votes of all children
        shares: (2,), of the variance along each axis
    """

    classes: Sequence[int]
    children: np.ndarray
    votes: np.ndarray
    couplings: np.ndarray
    centres: np.ndarray
    shares: np.ndarray


def vote_plane(routed: ClassRouting, classes: Sequence[int], most: int) -> VotePlane:
    """Place the votes for some classes in the plane.

    Args:
        routed: one input on its way into the classes.
        classes: numbers of the classes.
        most: keep this many children, those with the longest votes; axes and centres are those of all.
    """
    votes_ICD = routed.votes[:, classes]
    mean, axes_2D, shares = main_directions(votes_ICD.reshape(-1, votes_ICD.shape[-1]))
    lengths = np.linalg.norm(votes_ICD, axis=-1).max(1)
    chosen = np.argsort(-lengths, kind="stable")[:most]
    return VotePlane(
        classes=classes,
        children=chosen,
        votes=(votes_ICD[chosen] - mean) @ axes_2D.T,
        couplings=routed.couplings[:, chosen][..., classes],
        centres=(routed.centres()[:, classes] - mean) @ axes_2D.T,
        shares=shares,
    )


def main_directions(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, the two directions of most variance, and their shares of it (PCA).

    Shapes:
        points: (n, D) -> (D,), (2, D), (2,); of one-dimensional points the second direction is 0
    """
    mean = points.mean(0)
    _, sizes, directions = np.linalg.svd(points - mean, full_matrices=False)
    found, shares = np.zeros((2, points.shape[1]), points.dtype), np.zeros(2)
    kept = min(2, len(sizes))
    found[:kept] = directions[:kept]
    shares[:kept] = sizes[:kept] ** 2 / max(float((sizes**2).sum()), 1e-30)
    return mean, found, shares
