"""Convolutional capsule layers: every parent sees the children of its window."""

from math import prod

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.checks import check_count
from torchcaps.nn.layer import CapsuleLayer
from torchcaps.nn.norm import CapsuleNorm
from torchcaps.routing import Routing
from torchcaps.votes import ConvVotes
from torchcaps.votes.sharing import takes_old_name
from torchcaps.windows import Windows, border_of, per_axis


class _ConvCaps(CapsuleLayer):
    """Convolutional capsules in `num_axes` dimensions; see ConvCaps1d and ConvCaps2d."""

    num_axes: int

    @takes_old_name
    def __init__(
        self,
        in_types: int,
        out_types: int,
        in_size: int,
        out_size: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        *,
        routing: Routing,
        pose: str = "vector",
        sharing: str = "full",
        bias: bool = False,
        normalise_weights: bool | None = None,
        start: str | None = None,
        weight_std: float | None = None,
        norm: CapsuleNorm | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.in_types, self.out_types = check_count("in_types", in_types), check_count("out_types", out_types)
        self.child_types = in_types
        self.kernel_size = per_axis("kernel_size", kernel_size, self.num_axes)
        self.stride = per_axis("stride", stride, self.num_axes)
        self.dilation = per_axis("dilation", dilation, self.num_axes)
        self.padding = border_of(padding, self.kernel_size, self.dilation)
        super().__init__(
            (*self.kernel_size, in_types),
            prod(self.kernel_size) * in_types,
            out_types,
            in_size,
            out_size,
            routing=routing,
            pose=pose,
            sharing=sharing,
            bias=bias,
            normalise_weights=normalise_weights,
            start=start,
            weight_std=weight_std,
            norm=norm,
            device=device,
            dtype=dtype,
        )

    def votes(self, children: Capsules, *, mask: Tensor | None = None) -> ConvVotes:
        self.check_poses(children.poses, *("T" if self.num_axes == 1 else "HW"), self.in_types)
        return ConvVotes(
            children,
            self.transformation(),
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            pose=self.pose,
            sharing=self.sharing,
            bias=self.bias,
            mask=mask,
            window_mask=None if mask is None else self.output_mask(mask),
        )

    def output_mask(self, mask: Tensor) -> Tensor:
        """The parent positions whose whole window is real, or lies no farther beyond what is real than the padding.

        So a text behaves among longer ones as it does alone.

        Shapes:
            mask: (B, *spatial) -> (B, *positions)
        """
        if mask.dim() != self.num_axes + 1:
            raise ValueError(
                f"mask must have one entry per position, {self.num_axes + 1} axes, got {tuple(mask.shape)}"
            )
        reached = mask
        for axis, edge in enumerate(self.padding, 1):
            reached = _reached(reached, axis, edge)
        windows = Windows(tuple(reached.shape[1:]), 1, self.kernel_size, self.stride, self.dilation)
        return windows.gather(reached.flatten(1)).all(-1)

    def extra_repr(self) -> str:
        kernel = f"kernel_size={self.kernel_size}, stride={self.stride}"
        kernel += f", padding={self.padding}" if any(self.padding) else ""
        kernel += f", dilation={self.dilation}" if max(self.dilation) > 1 else ""
        return f"{self.in_types} -> {self.out_types} types, {kernel}, {super().extra_repr()}"


def _reached(mask: Tensor, axis: int, edge: int) -> Tensor:
    """What is at most `edge` positions away from what is real along an axis, with that many more on each side."""
    size = mask.shape[axis] + 2 * edge
    sides = [0, 0] * (mask.dim() - 1 - axis)
    padded = torch.nn.functional.pad(mask, [*sides, 2 * edge, 2 * edge])
    return torch.stack([padded.narrow(axis, first, size) for first in range(2 * edge + 1)]).any(0)


class ConvCaps1d(_ConvCaps):
    """Convolutional capsules over a sequence, such as the n-grams of a text.

    Args:
        in_types, out_types: capsule types per position.
        in_size, out_size: entries of a pose.
        kernel_size, stride, dilation: of the window.
        padding: positions on each side that hold no children, or "same", which keeps the size where the stride is 1.
            They take no part in routing.
        routing, pose, sharing, bias, normalise_weights, start, weight_std, norm: see CapsuleLayer.

    Shapes:
        children: poses (B, T, C, K), activations (B, T, C); mask (B, T), False = padding: a parent whose window
            reaches into padding does not exist (`output_mask` says which do)
        parents: poses (B, OT, J, D), activations (B, OT, J)

    Example:
        >>> from torchcaps.nn import KMeansRouting
        >>> layer = ConvCaps1d(4, 5, 8, 16, kernel_size=3, routing=KMeansRouting())
        >>> layer(Capsules.from_poses(torch.randn(2, 10, 4, 8))).poses.shape
        torch.Size([2, 8, 5, 16])
    """

    num_axes = 1


class ConvCaps2d(_ConvCaps):
    """Convolutional capsules over an image.

    Args:
        in_types, out_types: capsule types per position.
        in_size, out_size: entries of a pose (16 for 4 x 4 matrices).
        kernel_size, stride, dilation: of the window.
        padding: positions on each side that hold no children, or "same", which keeps the size where the stride is 1.
            They take no part in routing.
        routing, pose, sharing, bias, normalise_weights, start, weight_std, norm: see CapsuleLayer.

    Shapes:
        children: poses (B, H, W, C, K), activations (B, H, W, C); mask (B, H, W), as in ConvCaps1d
        parents: poses (B, OH, OW, J, D), activations (B, OH, OW, J)

    Example:
        >>> from torchcaps.nn import EMRouting
        >>> layer = ConvCaps2d(4, 5, 16, 16, kernel_size=3, stride=2, pose="matrix", routing=EMRouting())
        >>> layer(Capsules(torch.randn(2, 14, 14, 4, 16), torch.rand(2, 14, 14, 4))).poses.shape
        torch.Size([2, 6, 6, 5, 16])
    """

    num_axes = 2
