r"""What flows between capsule layers, and the ways to bound a pose.

A capsule is a pose (what the entity looks like) and an activation (whether it is there).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.checks import check_floating, check_positive


class Capsules(NamedTuple):
    """Poses and activations, the only thing that flows between capsule layers.

    A matrix pose is stored as its P * P entries row by row. Feature maps are channel-last.

    Shapes:
        poses: (..., D); feature maps (B, H, W, C, D)
        activations: (...), poses without the last axis

    Example:
        >>> capsules = Capsules.from_poses(torch.tensor([[3.0, 4.0]]))
        >>> capsules.activations
        tensor([5.])
    """

    poses: Tensor
    activations: Tensor

    @classmethod
    def from_poses(cls, poses: Tensor) -> "Capsules":
        """Vector capsules: the activation is the length of the pose."""
        return cls(poses, length(poses))

    def flatten(self) -> "Capsules":
        """All capsules of an example in one axis: poses (B, I, D), activations (B, I)."""
        return Capsules(self.poses.flatten(1, -2), self.activations.flatten(1))


def check_are_capsules(capsules: object) -> None:
    """Raise unless a layer was given what flows between layers."""
    if not isinstance(capsules, Capsules):
        raise TypeError(
            f"a capsule layer takes Capsules(poses, activations), got {type(capsules).__name__}; "
            "of poses alone, Capsules.from_poses(poses) makes capsules that are as active as they are long"
        )


def check_capsules(children: "Capsules | Tensor", num_axes: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Return (poses, activations or None) of capsules, or of poses given alone."""
    poses, activations = children if isinstance(children, Capsules) else (children, None)
    check_floating("poses", poses)
    if num_axes is not None and poses.dim() != num_axes:
        raise ValueError(f"poses must have {num_axes} axes, got shape {tuple(poses.shape)}")
    if activations is not None and activations.shape != poses.shape[:-1]:
        raise ValueError(
            f"activations must have the shape of poses without the last axis, {tuple(poses.shape[:-1])}, "
            f"got {tuple(activations.shape)}"
        )
    return poses, activations


def matrix_side(pose_size: int) -> int:
    """P of a P x P matrix pose that is stored as `pose_size` entries."""
    side = math.isqrt(pose_size)
    if side * side != pose_size:
        raise ValueError(f"a matrix pose needs a square number of entries such as 16 (4 x 4), got {pose_size}")
    return side


def length(poses: Tensor, *, keepdim: bool = False) -> Tensor:
    """|s| over the last axis; the gradient at s = 0 is 0."""
    return torch.linalg.vector_norm(poses, dim=-1, keepdim=keepdim)


def least_length(dtype: torch.dtype) -> float:
    """What divides nothing in this type: its square would underflow, and gradients by its inverse overflow."""
    return 1e-150 if dtype == torch.float64 else 1e-19


def normalise(poses: Tensor) -> Tensor:
    """s / |s| over the last axis, exactly; 0 with zero gradient where |s| is 0, or so small that 1 / |s| overflows.

    Example:
        >>> normalise(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """
    norm = length(poses, keepdim=True)
    is_zero = norm <= least_length(poses.dtype)
    return torch.where(is_zero, torch.zeros_like(poses), poses / torch.where(is_zero, torch.ones_like(norm), norm))


def squash(poses: Tensor, squash_k: float = 1.0) -> Tensor:
    r"""Shrink a vector to a length below 1 and keep its direction (Sabour et al. 2017).

    .. math:: squash(s) = \frac{|s|^2}{k + |s|^2} \frac{s}{|s|}

    written as s |s| / (k + |s|^2), which is 0 with zero gradient at s = 0.

    Args:
        poses: (..., D).
        squash_k: k; 1 is Sabour's, 0.5 is what Su found better.

    Example:
        >>> squash(torch.tensor([3.0, 4.0]))
        tensor([0.5769, 0.7692])
    """
    check_positive("squash_k", squash_k)
    norm = length(poses, keepdim=True)
    return poses * (norm / (squash_k + norm * norm))


def squash_exponentially(poses: Tensor) -> Tensor:
    r"""Shrink a vector to a length below 1, short ones hardly at all (Mazzia, Salvetti, Chiaberge 2021).

    .. math:: squash'(s) = (1 - e^{-|s|}) \frac{s}{|s|}

    which is 0 with zero gradient at s = 0. A short vector keeps its length, where :func:`squash` takes the square.

    Args:
        poses: (..., D).

    Example:
        >>> squash_exponentially(torch.tensor([3.0, 4.0]))
        tensor([0.5960, 0.7946])
    """
    return -torch.expm1(-length(poses, keepdim=True)) * normalise(poses)
