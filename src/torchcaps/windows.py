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

    Slots of a window are ordered (kernel row, kernel column, type). Works in any number of dimensions.

    Attributes:
        spatial: positions of the map, its border included.
        num_types: children of a position.
        kernel, stride: places of a window, and how far the next one is.
        dilation: how far the places of a window are from each other; () for 1.
        border: positions on each side of the map that are padding; () for none.

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
    dilation: tuple[int, ...] = ()
    border: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dilation", self.dilation or (1,) * len(self.kernel))
        object.__setattr__(self, "border", self.border or (0,) * len(self.kernel))
        if not len(self.spatial) == len(self.kernel) == len(self.stride):
            raise ValueError(
                f"kernel {self.kernel} and stride {self.stride} need one entry for each of the "
                f"{len(self.spatial)} spatial axes of the map {self.spatial}"
            )
        if any(size < extent for size, extent in zip(self.spatial, self.extent, strict=True)):
            raise ValueError(
                f"a window of {self.extent} does not fit into a map of {self.spatial}; "
                "use a smaller kernel or a larger input"
            )

    @property
    def extent(self) -> tuple[int, ...]:
        """Positions from the first to the last of a window, those that it leaves out included."""
        return tuple((kernel - 1) * step + 1 for kernel, step in zip(self.kernel, self.dilation, strict=True))

    @property
    def output(self) -> tuple[int, ...]:
        """Parent positions: (OH, OW), or (OT,) in one dimension."""
        sizes = zip(self.spatial, self.extent, self.stride, strict=True)
        return tuple((size - extent) // stride + 1 for size, extent, stride in sizes)

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
        firsts = (range(0, extent, step) for extent, step in zip(self.extent, self.dilation, strict=True))
        # a slice for each place in a window; unfold would be shorter, but its compiled gradient corrupts memory
        places = [
            maps[(slice(None), *(slice(at, at + step * size, step) for at, (size, step) in zip(place, sizes)))]
            for place in product(*firsts)
        ]
        return torch.stack(places, 1 + axes).flatten(1 + axes, 2 + axes)

    def children(self, device: torch.device | str | None = None) -> Tensor:
        """The child in each slot of each window: (positions, slots)."""
        numbers = torch.arange(self.num_children, device=device).unsqueeze(0)
        return self.gather(numbers).reshape(prod(self.output), self.num_slots)

    def inside(self, device: torch.device | str | None = None) -> Tensor:
        """The children that are no padding, in their order: numbers, (I without the border,)."""
        numbers = torch.arange(self.num_children, device=device).view(*self.spatial, self.num_types)
        for axis, border in enumerate(self.border):
            numbers = numbers.narrow(axis, border, numbers.shape[axis] - 2 * border)
        return numbers.flatten()


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

    def through(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
    ) -> "GridWindow":
        """What is seen through one more layer of sliding windows."""
        found = [
            (corner - int(border) * step, size + (length - 1) * apart * step, step * move)
            for corner, size, step, length, move, border, apart in zip(
                *self, kernel, stride, padding, dilation, strict=True
            )
        ]
        return GridWindow(*zip(*found, strict=True))

    def at(self, place: Sequence[int], image_size: Sequence[int]) -> tuple[int, int, int, int]:
        """(top, left, height, width) of what a place (row, column) sees within an image (height, width)."""
        starts = [corner + number * step for corner, number, step in zip(self.corner, place, self.step, strict=True)]
        ends = [min(start + size, most) for start, size, most in zip(starts, self.size, image_size, strict=True)]
        (top, left) = (max(start, 0) for start in starts)
        return top, left, max(ends[0] - top, 0), max(ends[1] - left, 0)


def per_axis(name: str, value: int | tuple[int, ...], num_axes: int, *, least: int = 1) -> tuple[int, ...]:
    """One integer of at least `least` for each spatial axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * num_axes
    if len(values) != num_axes or not all(isinstance(entry, int) and entry >= least for entry in values):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {wanted} or {num_axes} of them, got {value!r}")
    return values


def border_of(
    padding: int | tuple[int, ...] | str, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Positions of padding on each side, by axis; "same" keeps the size of a map where the stride is 1.

    Every window must hold something of the map, so that padding is less than a window reaches over.

    Example:
        >>> border_of("same", (3, 3), (1, 2))
        (1, 2)
    """
    reaches = tuple((size - 1) * step for size, step in zip(kernel, dilation, strict=True))
    if padding == "same":
        if any(reach % 2 for reach in reaches):
            raise ValueError(f"padding='same' needs windows of odd size, got {kernel}; give the padding in numbers")
        return tuple(reach // 2 for reach in reaches)
    if isinstance(padding, str):
        raise ValueError(f"padding must be 'same' or a number of positions, got {padding!r}")
    border = per_axis("padding", padding, len(kernel), least=0)
    if any(edge > reach for edge, reach in zip(border, reaches, strict=True)):
        raise ValueError(
            f"padding {border} is more than a window of {kernel} with dilation {dilation} reaches over, so that some "
            f"would see nothing; give at most {reaches}"
        )
    return border
