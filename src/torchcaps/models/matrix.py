"""Matrix capsule networks with EM routing (Hinton, Sabour, Frosst 2018)."""

from math import prod
from typing import Any

from torch import Tensor, cat, nn

from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.stems import map_size
from torchcaps.nn import CapsuleNoise, ClassCaps, ConvCaps2d, PrimaryMatrixCaps, create_routing
from torchcaps.routing import RoutingResult


class MatrixCapsNet(ImageModel):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules with coordinate addition.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        channels: A, of the first convolution.
        types: (B, C, D), capsule types of the primary and the two convolutional layers.
        routing, routing_options: of all three routed layers.
        coordinates: add the place of a child to its vote for a class.
        batch_norm: after the first convolution.
        pose: "matrix", or "vector" for 16-vectors with 16 x 16 transformations.
        weight_std: how far transformations lie from the identity at the start, or from 0 for vectors; None for the
            layers' own.
        capsule_dropout, pose_noise: in training, on the children of all three routed layers; see
            `torchcaps.nn.CapsuleNoise`.

    Example:
        >>> model = MatrixCapsNet(image_shape=(2, 32, 32), num_classes=5)
        >>> sum(parameter.numel() for parameter in model.parameters())
        317194
    """

    name = "matrix-capsnet"
    default_loss = "spread"
    least_size = 17
    pose_size = 16

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        channels: int = 32,
        types: tuple[int, int, int] = (32, 32, 32),
        routing: str = "em",
        routing_options: dict[str, Any] | None = None,
        coordinates: bool = True,
        batch_norm: bool = False,
        pose: str = "matrix",
        weight_std: float | None = None,
        capsule_dropout: float = 0.0,
        pose_noise: float = 0.0,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            channels=channels,
            types=list(types),
            routing=routing,
            routing_options=routing_options,
            coordinates=coordinates,
            batch_norm=batch_norm,
            pose=pose,
            weight_std=weight_std,
            capsule_dropout=capsule_dropout,
            pose_noise=pose_noise,
        )

        def new_routing():
            return create_routing(routing, **(routing_options or {}))

        if multi_label:
            self.default_loss = "margin"
        size, (first, second, third) = self.pose_size, types
        layer: dict[str, Any] = {"pose": pose, "weight_std": weight_std}
        self.features = matrix_stem(image_shape[0], channels, batch_norm=batch_norm)
        is_weighed = new_routing().weighs_children
        self.noise = CapsuleNoise(dropout=capsule_dropout, pose_noise=pose_noise, drop_poses=not is_weighed)
        self.primary = PrimaryMatrixCaps(channels, first, size)
        self.conv1 = ConvCaps2d(first, second, size, size, 3, 2, routing=new_routing(), **layer)
        self.conv2 = ConvCaps2d(second, third, size, size, 3, 1, routing=new_routing(), **layer)
        self.class_capsules = ClassCaps(
            third, num_classes, size, size, coordinates=coordinates, routing=new_routing(), **layer
        )

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        capsules = self.primary(self.features(self.pad(images)))
        for layer in (self.conv1, self.conv2, self.class_capsules):
            capsules = layer(self.noise(capsules))
        return ModelOutput(capsules.activations, capsules.poses)

    def route(self, images: Tensor, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        """The routing of every capsule layer, from the first to the classes."""
        children = self.primary(self.features(self.pad(images)))
        results = {}
        for name in ("conv1", "conv2", "class_capsules"):
            results[name] = getattr(self, name).route(children, return_trace=return_trace)
            children = results[name].capsules
        return results


class MatrixCapsNetSmall(MatrixCapsNet):
    """The small form: A = 64, B = 8, C = D = 16; 68,754 parameters with two cameras and five classes."""

    name = "matrix-capsnet-small"

    def __init__(self, *, channels: int = 64, types: tuple[int, int, int] = (8, 16, 16), **options: Any) -> None:
        super().__init__(channels=channels, types=types, **options)


class MatrixNoRouting(ImageModel):
    """Stem and primary capsules of MatrixCapsNet with a fully connected layer on their poses and activations.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        channels: A, of the first convolution.
        types: B, primary capsule types.
        batch_norm: after the first convolution.
    """

    name = "matrix-no-routing"
    default_loss = "cross_entropy"
    gives_activations = False
    least_size = MatrixCapsNet.least_size

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        channels: int = 64,
        types: int = 8,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            channels=channels,
            types=types,
            batch_norm=batch_norm,
        )
        self.features = matrix_stem(image_shape[0], channels, batch_norm=batch_norm)
        self.primary = PrimaryMatrixCaps(channels, types, MatrixCapsNet.pose_size)
        num_capsules = prod(map_size(self.features, self.padded_shape[1:])) * types
        self.classifier = nn.Linear(num_capsules * (MatrixCapsNet.pose_size + 1), num_classes)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        capsules = self.primary(self.features(self.pad(images)))
        everything = cat([capsules.poses.flatten(1), capsules.activations.flatten(1)], dim=1)
        return ModelOutput(self.classifier(everything))


def matrix_stem(in_channels: int, channels: int, *, batch_norm: bool) -> nn.Sequential:
    """A convolution with 5 x 5 kernels and stride 2, perhaps batch norm, ReLU: 32 x 32 -> 14 x 14."""
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, 5, stride=2),
        nn.BatchNorm2d(channels) if batch_norm else nn.Identity(),
        nn.ReLU(),
    )
