"""Residual stems in the form that CIFAR knows (He et al. 2016): 3 x 3 convolutions, three stages, 32 x 32 -> 8 x 8."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.nn import BatchNorm2d


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, added to what came; a 1 x 1 convolution where channels or size change."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution(in_channels, out_channels, 3, stride),
            BatchNorm2d(out_channels),
            nn.ReLU(),
            _convolution(out_channels, out_channels, 3, 1),
            BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(_convolution(in_channels, out_channels, 1, stride), BatchNorm2d(out_channels))

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(self.branch(maps) + self.shortcut(maps))


class ResNetStem(nn.Sequential):
    """A convolution and three stages of residual blocks, the second and third with stride 2.

    Args:
        in_channels: of the images.
        widths: channels of the three stages.
        depth: blocks of a stage; 6 depth + 2 layers with a classifier.

    Shapes:
        images: (B, in_channels, H, W) -> (B, widths[-1], H / 4, W / 4), rounded up

    Example:
        >>> ResNetStem(3, (16, 32, 64), 3)(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 64, 8, 8])
    """

    def __init__(self, in_channels: int, widths: Sequence[int], depth: int) -> None:
        layers: list[nn.Module] = [_convolution(in_channels, widths[0], 3, 1), BatchNorm2d(widths[0]), nn.ReLU()]
        channels = widths[0]
        for stage, width in enumerate(widths):
            for block in range(depth):
                layers.append(ResidualBlock(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = width
        super().__init__(*layers)
        convert_conv2d_weight_memory_format(self, torch.channels_last)  # as the other stems


def _convolution(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
