"""Decoders: an image from the pose of one class, so that a pose must say what the thing looks like."""

from math import prod

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, check_are_capsules
from torchcaps.checks import check_count, check_positive


class Decoder(nn.Module):
    """Keeps the pose of one class, zeroes the others and decodes what is left.

    Several classes are decoded one at a time, and where their images meet the stronger counts: so the pose of a class
    learns to draw its own thing although nobody shows it alone. No class at all is a black image.

    Args:
        in_capsules: J, one per class.
        in_size: D, entries of a pose.
        image_shape: (channels, H, W) of the reconstruction.
        pose_scale: poses are multiplied by it before they are decoded. A pose is at most 1 long and its entries differ
            by less than 0.1 between the things of a class: as they are, the biases of a layer drown them at the start.

    Shapes:
        capsules: poses (B, J, D), activations (B, J)
        classes: (B,) indices, (B, J) boolean for any number of classes, or None for the most active class
        images: (B, channels, H, W) in [0, 1]
    """

    network: nn.Module

    def __init__(
        self, in_capsules: int, in_size: int, image_shape: tuple[int, int, int], *, pose_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.pose_scale = check_positive("pose_scale", pose_scale)
        if len(image_shape) != 3:
            raise ValueError(f"image_shape must be (channels, height, width), got {image_shape}")
        self.in_capsules, self.in_size = check_count("in_capsules", in_capsules), check_count("in_size", in_size)
        self.image_shape = tuple(check_count("a size of image_shape", size) for size in image_shape)

    def reset_parameters(self) -> None:
        """Start the network anew."""
        for module in self.network.modules():
            if isinstance(module, (nn.Linear, nn.ConvTranspose2d)):
                module.reset_parameters()

    def forward(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        check_are_capsules(capsules)
        if classes is None or classes.dim() == 1:
            return self.decode(self.select(capsules, classes))
        examples_N, classes_N = classes.nonzero(as_tuple=True)
        chosen = Capsules(capsules.poses[examples_N], capsules.activations[examples_N])
        alone_NCHW = self.decode(self.select(chosen, classes_N))
        black_BCHW = alone_NCHW.new_zeros(len(classes), *self.image_shape)
        places_NCHW = examples_N.view(-1, 1, 1, 1).expand_as(alone_NCHW)
        return black_BCHW.scatter_reduce(0, places_NCHW, alone_NCHW, "amax")

    def select(self, capsules: Capsules, classes: Tensor | None = None) -> Tensor:
        """Poses times their scale, with all but the chosen class of each example set to zero: (B, J, D)."""
        check_are_capsules(capsules)
        poses, activations = capsules
        if poses.dim() != 3 or tuple(poses.shape[1:]) != (self.in_capsules, self.in_size):
            raise ValueError(f"poses must have shape (B, {self.in_capsules}, {self.in_size}), got {tuple(poses.shape)}")
        if classes is None:
            classes = activations.argmax(-1)
        is_chosen_BJ = classes.unsqueeze(-1) == torch.arange(self.in_capsules, device=classes.device)
        return poses * (self.pose_scale * is_chosen_BJ.to(poses.dtype)).unsqueeze(-1)

    def decode(self, poses: Tensor) -> Tensor:
        """Images from masked poses: (B, J, D) -> (B, channels, H, W)."""
        raise NotImplementedError


class FullyConnectedDecoder(Decoder):
    """512 - 1024 - pixels with ReLU, ReLU and sigmoid (Sabour et al. 2017).

    Example:
        >>> decoder = FullyConnectedDecoder(10, 16, (1, 28, 28))
        >>> decoder(Capsules.from_poses(torch.randn(2, 10, 16))).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        in_capsules: int,
        in_size: int,
        image_shape: tuple[int, int, int],
        *,
        hidden: tuple[int, ...] = (512, 1024),
        pose_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_capsules, in_size, image_shape, pose_scale=pose_scale)
        layers: list[nn.Module] = []
        size = in_capsules * in_size
        for width in hidden:
            layers += [nn.Linear(size, check_count("a width of hidden", width), device=device, dtype=dtype), nn.ReLU()]
            size = width
        layers += [nn.Linear(size, prod(image_shape), device=device, dtype=dtype), nn.Sigmoid()]
        self.network = nn.Sequential(*layers)

    def decode(self, poses: Tensor) -> Tensor:
        return self.network(poses.flatten(1)).unflatten(-1, self.image_shape)


class ConvDecoder(Decoder):
    """A coarse map that transposed convolutions enlarge twice, with ReLU and sigmoid; any image size.

    It draws digits about as well as a FullyConnectedDecoder with ten times its parameters.

    Args:
        in_capsules, in_size, image_shape, pose_scale: see Decoder.
        channels: of the coarse map; the one between has twice as many.

    Example:
        >>> ConvDecoder(10, 16, (3, 33, 30))(Capsules.from_poses(torch.randn(2, 10, 16))).shape
        torch.Size([2, 3, 33, 30])
    """

    def __init__(
        self,
        in_capsules: int,
        in_size: int,
        image_shape: tuple[int, int, int],
        *,
        channels: int = 16,
        pose_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_capsules, in_size, image_shape, pose_scale=pose_scale)
        colours, height, width = image_shape
        coarse = (check_count("channels", channels), -(-height // 4), -(-width // 4))
        like = {"device": device, "dtype": dtype}
        self.network = nn.Sequential(
            nn.Linear(in_capsules * in_size, prod(coarse), **like),
            nn.ReLU(),
            nn.Unflatten(-1, coarse),
            nn.ConvTranspose2d(channels, 2 * channels, 4, stride=2, padding=1, **like),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * channels, colours, 4, stride=2, padding=1, **like),
            nn.Sigmoid(),
        )

    def decode(self, poses: Tensor) -> Tensor:
        _, height, width = self.image_shape
        return self.network(poses.flatten(1))[..., :height, :width]
