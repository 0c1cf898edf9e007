"""Sliding windows over a feature map: which children each parent position sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Windows of size `kernel` moved by `stride` over a map of `spatial` positions with `num_types` children each.

    Slots of a window are ordered (kernel row, kernel column, type); no padding. Works in any number of dimensions.

    Example:
        >>> windows = Windows(spatial=(5,), num_types=1, kernel=(3,), stride=(2,))
        >>> windows.children()
        tensor([[0, 1, 2],
                [2, 3, 4]])
    """

    spatial: tuple[int, ...]
    num_types: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.spatial) == len(self.kernel) == len(self.stride):
            raise ValueError(
                f"kernel {self.kernel} and stride {self.stride} need one entry for each of the "
                f"{len(self.spatial)} spatial axes of the map {self.spatial}"
            )
        if any(size < kernel for size, kernel in zip(self.spatial, self.kernel, strict=True)):
            raise ValueError(
                f"a window of {self.kernel} does not fit into a map of {self.spatial}; "
                "use a smaller kernel or a larger input"
            )

    @property
    def output(self) -> tuple[int, ...]:
        """Parent positions: (OH, OW), or (OT,) in one dimension."""
        sizes = zip(self.spatial, self.kernel, self.stride, strict=True)
        return tuple((size - kernel) // stride + 1 for size, kernel, stride in sizes)

    @property
    def num_slots(self) -> int:
        """Children in one window."""
        return prod(self.kernel) * self.num_types

    @property
    def num_children(self) -> int:
        """Children on the map."""
        return prod(self.spatial) * self.num_types

    def gather(self, flat: Tensor) -> Tensor:
        """Copy every child into the slots it fills.

        Shapes:
            flat: (B, I, ...) -> (B, *output, slots, ...)
        """
        maps, axes = flat.unflatten(1, (*self.spatial, self.num_types)), len(self.spatial)
        sizes = list(zip(self.output, self.stride, strict=True))
        # a slice for each place in a window; unfold would be shorter, but its compiled gradient corrupts memory
        places = [
            maps[(slice(None), *(slice(at, at + step * size, step) for at, (size, step) in zip(place, sizes)))]
            for place in product(*map(range, self.kernel))
        ]
        return torch.stack(places, 1 + axes).flatten(1 + axes, 2 + axes)

    def children(self, device: torch.device | str | None = None) -> Tensor:
        """The child in each slot of each window: (positions, slots)."""
        numbers = torch.arange(self.num_children, device=device).unsqueeze(0)
        return self.gather(numbers).reshape(prod(self.output), self.num_slots)


class GridWindow(NamedTuple):
    """What the first place of a grid of capsules sees of the image, and how far the next one is, in pixels.

    Pairs are (down, across). Windows overlap, and of padded images they may reach beyond the border.

    Example:
        >>> GridWindow((0, 0), (1, 1), (1, 1)).through((5, 5), (2, 2)).through((3, 3), (1, 1))
        GridWindow(corner=(0, 0), size=(9, 9), step=(2, 2))
    """

    corner: tuple[int, int]
    size: tuple[int, int]
    step: tuple[int, int]

    def through(self, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int] = (0, 0)) -> "GridWindow":
        """What is seen through one more layer of sliding windows."""
        found = [
            (corner - int(border) * step, size + (length - 1) * step, step * move)
            for corner, size, step, length, move, border in zip(*self, kernel, stride, padding, strict=True)
        ]
        return GridWindow(*zip(*found, strict=True))

    def at(self, place: Sequence[int], image_size: Sequence[int]) -> tuple[int, int, int, int]:
        """(top, left, height, width) of what a place (row, column) sees within an image (height, width)."""
        starts = [corner + number * step for corner, number, step in zip(self.corner, place, self.step, strict=True)]
        ends = [min(start + size, most) for start, size, most in zip(starts, self.size, image_size, strict=True)]
        (top, left) = (max(start, 0) for start in starts)
        return top, left, max(ends[0] - top, 0), max(ends[1] - left, 0)


def per_axis(name: str, value: int | tuple[int, ...], num_axes: int) -> tuple[int, ...]:
    """One positive integer for each spatial axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * num_axes
    if len(values) != num_axes or not all(isinstance(entry, int) and entry >= 1 for entry in values):
        raise ValueError(f"{name} must be a positive integer or {num_axes} of them, got {value!r}")
    return values
