"""Squash as a module; the functions live with the capsules."""

from torch import Tensor, nn

from torchcaps.capsules import squash, squash_exponentially
from torchcaps.checks import check_positive

__all__ = ["Squash", "squash", "squash_exponentially"]


class Squash(nn.Module):
    """Shrinks every vector to a length below 1: see :func:`torchcaps.nn.squash`."""

    def __init__(self, squash_k: float = 1.0) -> None:
        super().__init__()
        self.squash_k = check_positive("squash_k", squash_k)

    def forward(self, poses: Tensor) -> Tensor:
        return squash(poses, self.squash_k)

    def extra_repr(self) -> str:
        return f"squash_k={self.squash_k}"
