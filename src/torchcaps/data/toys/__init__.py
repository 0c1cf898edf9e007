"""A toy world with known viewpoints: five categories of solids, rendered from all sides, in smallNORB's format."""

from torchcaps.data.toys.dataset import write_toys

__all__ = ["write_toys"]
