"""From features to the first capsules."""

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, squash, squash_exponentially
from torchcaps.checks import check_count, check_positive
from torchcaps.nn.norm import CapsuleNorm, check_norm
from torchcaps.windows import per_axis


class PrimaryCaps(nn.Module):
    """Vector capsules from a convolution: a capsule is the K channels of one type at one position, squashed.

    Args:
        in_channels: of the feature map.
        out_types: capsule types per position.
        out_size: K, entries of a pose.
        kernel_size, stride, padding, groups: of the convolution.
        squash_k: k of the squash.

    Shapes:
        features: (B, in_channels, H, W), channels first as torch has them
        capsules: poses (B, OH, OW, types, K), activations (B, OH, OW, types)

    Example:
        >>> PrimaryCaps(256, 32, 8, kernel_size=9, stride=2)(torch.randn(1, 256, 20, 20)).poses.shape
        torch.Size([1, 6, 6, 32, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_types: int,
        out_size: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        *,
        groups: int = 1,
        squash_k: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_count("in_channels", in_channels)
        self.out_types, self.out_size = check_count("out_types", out_types), check_count("out_size", out_size)
        self.kernel_size, self.stride = per_axis("kernel_size", kernel_size, 2), per_axis("stride", stride, 2)
        self.squash_k = check_positive("squash_k", squash_k)
        self.conv = nn.Conv2d(
            in_channels,
            out_types * out_size,
            kernel_size,
            stride,
            padding,
            groups=groups,
            device=device,
            dtype=dtype,
        )

    def reset_parameters(self) -> None:
        """Start the convolution anew."""
        self.conv.reset_parameters()

    def forward(self, features: Tensor) -> Capsules:
        # Copied once: reductions over poses whose entries lie apart are far slower.
        channels_last = self.conv(features).permute(0, 2, 3, 1).contiguous()
        poses = channels_last.unflatten(-1, (self.out_types, self.out_size))
        return Capsules.from_poses(self.squash(poses))

    def squash(self, poses: Tensor) -> Tensor:
        """Bring poses to lengths below 1."""
        return squash(poses, self.squash_k)

    def extra_repr(self) -> str:
        return f"out_types={self.out_types}, out_size={self.out_size}, squash_k={self.squash_k}"


class DepthwisePrimaryCaps(PrimaryCaps):
    r"""Vector capsules from a depthwise convolution: an entry of a pose looks at one channel (Mazzia et al. 2021).

    With F = types * K channels and one kernel for each, entry h of the capsule of type c at a place is

    .. math:: s_{ch} = b_{cK+h} + \sum_{yx} w_{cK+h,yx} F_{cK+h,yx}, \quad u_c = (1 - e^{-|s_c|}) \frac{s_c}{|s_c|}

    A kernel as large as the map gives one place, with few capsules that each see all of it.

    Args:
        out_types: capsule types per position.
        out_size: K, entries of a pose; there are as many channels as entries of all types.
        kernel_size, stride, padding: of the convolution.

    Shapes:
        features: (B, types * K, H, W)
        capsules: poses (B, OH, OW, types, K), activations (B, OH, OW, types)

    Example:
        >>> DepthwisePrimaryCaps(16, 8, kernel_size=9)(torch.randn(1, 128, 9, 9)).poses.shape
        torch.Size([1, 1, 1, 16, 8])
    """

    def __init__(
        self,
        out_types: int,
        out_size: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_channels = check_count("out_types", out_types) * check_count("out_size", out_size)
        super().__init__(
            *(num_channels, out_types, out_size, kernel_size, stride, padding),
            groups=num_channels,
            device=device,
            dtype=dtype,
        )

    def squash(self, poses: Tensor) -> Tensor:
        return squash_exponentially(poses)

    def extra_repr(self) -> str:
        return f"out_types={self.out_types}, out_size={self.out_size}"


class PrimaryMatrixCaps(nn.Module):
    """Matrix capsules from a 1 x 1 convolution: P * P pose entries and one sigmoid activation per type.

    Args:
        in_channels: of the feature map.
        out_types: capsule types per position.
        out_size: P * P, entries of a pose.
        kernel_size: of the convolution; 1 in the paper.
        bias: of the convolution.
        norm: of poses and activation logits, an instance of its own; None for none.

    Shapes:
        features: (B, in_channels, H, W)
        capsules: poses (B, H, W, types, P * P), activations (B, H, W, types)

    Example:
        >>> PrimaryMatrixCaps(32, 8)(torch.randn(1, 32, 14, 14)).activations.shape
        torch.Size([1, 14, 14, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_types: int,
        out_size: int = 16,
        kernel_size: int | tuple[int, int] = 1,
        *,
        bias: bool = True,
        norm: CapsuleNorm | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_count("in_channels", in_channels)
        self.out_types, self.out_size = check_count("out_types", out_types), check_count("out_size", out_size)
        self.kernel_size = per_axis("kernel_size", kernel_size, 2)
        self.conv = nn.Conv2d(
            in_channels, out_types * (out_size + 1), kernel_size, bias=bias, device=device, dtype=dtype
        )
        self.norm = norm if norm is None else check_norm(norm, out_types)

    def reset_parameters(self) -> None:
        """Start the convolution and the norm anew."""
        self.conv.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, features: Tensor) -> Capsules:
        channels_last = self.conv(features).permute(0, 2, 3, 1)
        poses, logits = channels_last.split([self.out_types * self.out_size, self.out_types], dim=-1)
        poses = poses.unflatten(-1, (self.out_types, self.out_size))
        return Capsules(poses, logits.sigmoid()) if self.norm is None else self.norm(poses, logits)

    def extra_repr(self) -> str:
        return f"out_types={self.out_types}, out_size={self.out_size}"
