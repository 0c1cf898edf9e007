"""Matrix capsule networks with EM routing (Hinton, Sabour, Frosst 2018), as published and as they learn best."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from torch import Tensor, cat, nn

from torchcaps.checks import check_choice
from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.registry import register_model
from torchcaps.models.stems import map_size
from torchcaps.nn import (
    BatchNorm2d,
    CapsuleNoise,
    CapsuleNorm,
    ClassCaps,
    ConvCaps2d,
    PrimaryMatrixCaps,
    Routing,
    create_routing,
)
from torchcaps.routing import RoutingResult


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a matrix capsule network is where its options do not say otherwise.

    Attributes:
        loss: of networks with one class per image.
        batch_norm: after the first convolution.
        norm: statistics of the norms after every capsule layer, or "none".
        start: of the transformations.
        coordinates: scale of the coordinates that are added to votes for classes.
        routing_options: of each routing, where they are not those of its function.
    """

    loss: str
    batch_norm: bool
    norm: str
    start: str | None
    coordinates: bool | float
    routing_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# Couplings that start soft let several iterations learn; norms, activations from the spread of votes alone and a loss
# that never comes to rest make the network better with any number of them (docs/smallnorb.md has the figures).
SOFT = Variant(
    loss="softmax_cross_entropy",
    batch_norm=True,
    norm="batch",
    start="small",
    coordinates=0.1,
    routing_options={
        "em": {
            "num_iterations": 3,
            "activation": "entropy",
            "lambda_schedule": 0.001,
            "eps_var": 1e-4,
            "inverse_temperature": 1 / 16,
        },
        "entropy": {"alpha": 1.0},
        "heinsen": {"eps_var": 0.055},
        "vb": {"kappa0": 16.0, "nu0": 32.0, "psi0": 8.0},
    },
)
PAPER = Variant(loss="spread", batch_norm=False, norm="none", start=None, coordinates=True)
VARIANTS = {"soft": SOFT, "paper": PAPER}
NORMS = ("none", "batch", "example")


@register_model("matrix-capsnet")
class MatrixCapsNet(ImageModel):
    """Convolution, primary capsules, two convolutional capsule layers, class capsules with coordinate addition.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        channels: A, of the first convolution.
        types: (B, C, D), capsule types of the primary and the two convolutional layers.
        variant: "soft": couplings start soft, norms stand between the layers; "paper": the network of the paper. The
            options below that are None follow it.
        routing, routing_options: of all three routed layers; options that are not given follow the variant.
        class_routing_options: of the class layer, where they differ from routing_options.
        coordinates: add the place of a child to its vote for a class, times this number if it is one.
        batch_norm: after the first convolution.
        norm: of poses and activation logits after every capsule layer, with the statistics of a "batch" or of each
            "example" (of a batch for the classes), or "none"; see `torchcaps.nn.CapsuleNorm`.
        start: of the transformations, "small" or "identity"; see `torchcaps.nn.CapsuleLayer`.
        pose: "matrix", or "vector" for 16-vectors with 16 x 16 transformations.
        weight_std: how far transformations lie from the identity at the start, or from 0 for vectors; None for the
            layers' own.
        capsule_dropout, pose_noise: in training, on the children of all three routed layers; see
            `torchcaps.nn.CapsuleNoise`.

    Example:
        >>> model = MatrixCapsNet(image_shape=(2, 32, 32), num_classes=5)
        >>> sum(parameter.numel() for parameter in model.parameters())
        316820
        >>> model = MatrixCapsNet(image_shape=(2, 32, 32), num_classes=5, variant="paper")
        >>> sum(parameter.numel() for parameter in model.parameters())
        317194
    """

    default_loss = SOFT.loss
    least_size = 17
    pose_size = 16
    named_options: ClassVar[Mapping[str, Any]] = {"variant": "soft"}
    old_options: ClassVar[Mapping[str, Any]] = {"variant": "paper"}

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        channels: int = 32,
        types: tuple[int, int, int] = (32, 32, 32),
        variant: str = "soft",
        routing: str = "em",
        routing_options: dict[str, Any] | None = None,
        class_routing_options: dict[str, Any] | None = None,
        coordinates: bool | float | None = None,
        batch_norm: bool | None = None,
        norm: str | None = None,
        start: str | None = None,
        pose: str = "matrix",
        weight_std: float | None = None,
        capsule_dropout: float = 0.0,
        pose_noise: float = 0.0,
    ) -> None:
        usual = VARIANTS[check_choice("variant", variant, VARIANTS)]
        batch_norm = usual.batch_norm if batch_norm is None else batch_norm
        norm = usual.norm if norm is None else check_choice("norm", norm, NORMS)
        start = usual.start if start is None else start
        coordinates = usual.coordinates if coordinates is None else coordinates
        routing_options = {**usual.routing_options.get(routing, {}), **(routing_options or {})}
        super().__init__(  # what a saved folder says does not change with the variants
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            channels=channels,
            types=list(types),
            variant=variant,
            routing=routing,
            routing_options=routing_options,
            class_routing_options=class_routing_options,
            coordinates=coordinates,
            batch_norm=batch_norm,
            norm=norm,
            start=start,
            pose=pose,
            weight_std=weight_std,
            capsule_dropout=capsule_dropout,
            pose_noise=pose_noise,
        )

        def new_routing(**others: Any) -> Routing:
            return create_routing(routing, **{**routing_options, **others})

        def new_norm(num_types: int, statistics: str = norm, **options: Any) -> CapsuleNorm | None:
            return None if norm == "none" else CapsuleNorm(num_types, statistics=statistics, **options)

        self.default_loss = "margin" if multi_label else usual.loss
        size, (first, second, third) = self.pose_size, types
        layer: dict[str, Any] = {"pose": pose, "start": start, "weight_std": weight_std}
        is_published = variant == "paper"
        self.features = matrix_stem(image_shape[0], channels, batch_norm=batch_norm, is_published=is_published)
        is_weighed = new_routing().weighs_children
        self.noise = CapsuleNoise(dropout=capsule_dropout, pose_noise=pose_noise, drop_poses=not is_weighed)
        self.primary = PrimaryMatrixCaps(
            channels, first, size, bias=is_published, norm=new_norm(first, pose_affine=True, logit_affine=is_weighed)
        )
        if not is_published:
            nn.init.xavier_uniform_(self.primary.conv.weight)
        self.conv1 = ConvCaps2d(first, second, size, size, 3, 2, routing=new_routing(), norm=new_norm(second), **layer)
        self.conv2 = ConvCaps2d(second, third, size, size, 3, 1, routing=new_routing(), norm=new_norm(third), **layer)
        self.class_capsules = ClassCaps(
            *(third, num_classes, size, size),
            coordinates=coordinates,
            routing=new_routing(**(class_routing_options or {})),
            norm=new_norm(num_classes, "batch", logit_affine=True),  # of one example, classes are too few
            **layer,
        )

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        # here and not left to the base class: torch.compile counts its recompilations by function
        return self.conclude(self.route(images), classes)

    def route(self, images: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        capsules, results = self.primary(self.features(self.pad(images))), {}
        for name in ("conv1", "conv2", "class_capsules"):
            results[name] = getattr(self, name).route(self.noise(capsules), return_trace=return_trace)
            capsules = results[name].capsules
        return results


@register_model("matrix-capsnet-small")
class MatrixCapsNetSmall(MatrixCapsNet):
    """The small form: A = 64, B = 8, C = D = 16; 68,724 parameters with two cameras and five classes.

    As published ("paper") it has 68,754.
    """

    def __init__(self, *, channels: int = 64, types: tuple[int, int, int] = (8, 16, 16), **options: Any) -> None:
        super().__init__(channels=channels, types=types, **options)


@register_model("matrix-no-routing")
class MatrixNoRouting(ImageModel):
    """Stem and primary capsules of MatrixCapsNet with a fully connected layer on their poses and activations.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        channels: A, of the first convolution.
        types: B, primary capsule types.
        batch_norm: after the first convolution.
    """

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

    def last_features(self, images: Tensor, /) -> Tensor:
        capsules = self.primary(self.features(self.pad(images)))
        return cat([capsules.poses.flatten(1), capsules.activations.flatten(1)], dim=1)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.classifier(self.last_features(images)))


def matrix_stem(in_channels: int, channels: int, *, batch_norm: bool, is_published: bool = True) -> nn.Sequential:
    """A convolution with 5 x 5 kernels and stride 2, perhaps batch norm, ReLU: 32 x 32 -> 14 x 14."""
    convolution = nn.Conv2d(in_channels, channels, 5, stride=2, bias=is_published)
    if not is_published:
        nn.init.kaiming_uniform_(convolution.weight)
    return nn.Sequential(convolution, BatchNorm2d(channels) if batch_norm else nn.Identity(), nn.ReLU())
