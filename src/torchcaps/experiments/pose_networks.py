"""CapsNet-Small with parts that can be exchanged, for the comparison of these parts alone."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.models import ImageModel, ModelOutput
from torchcaps.models.capsnet import EM_OPTIONS
from torchcaps.models.stems import SMALL_STEM_LEAST_SIZE, map_size, small_primary, small_stem
from torchcaps.nn import DenseCaps, PrimaryCaps, create_routing
from torchcaps.nn.decoder import ConvDecoder, Decoder, FullyConnectedDecoder
from torchcaps.routing import RoutingResult

WEIGHT_STD = 0.05


class PoseNetwork(ImageModel):
    """CapsNet-Small, part by part.

    Args:
        image_shape, num_classes: see ImageModel.
        routing, routing_options, sharing, decoder_hidden, pose_scale: see VectorCapsNet.
        inner_size: of transformations that are factorised through as many entries: each child has a matrix of its own
            into a space of this size, each class one out of it.
        num_types, pose_size: of the primary capsules.
        draws_winner: in training the winner is decoded, not the true class.
    """

    name = "pose-network"
    least_size = SMALL_STEM_LEAST_SIZE
    is_told_class = False

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        routing: str = "dynamic",
        routing_options: dict[str, Any] | None = None,
        sharing: str = "full",
        inner_size: int | None = None,
        num_types: int = 16,
        pose_size: int = 8,
        class_size: int = 16,
        decoder_hidden: Sequence[int] | None = None,
        pose_scale: float = 64.0,
        draws_winner: bool = False,
    ) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes)
        self.draws_winner = draws_winner
        self.features = small_stem(image_shape[0])
        channels = num_types * pose_size
        self.primary = PrimaryCaps(128, num_types, pose_size, kernel_size=3, stride=2, groups=min(128, channels))
        num_children = num_types * prod(map_size(nn.Sequential(self.features, self.primary), self.padded_shape[1:]))
        self.inner = None
        std = WEIGHT_STD
        if inner_size is not None:
            self.inner = nn.Parameter(torch.randn(num_children, pose_size, inner_size) / pose_size**0.5)
            sharing, std, pose_size = "shared", WEIGHT_STD * (pose_size / inner_size) ** 0.5, inner_size
        if routing == "em":
            routing_options, self.default_loss = EM_OPTIONS | (routing_options or {}), "spread"
        self.class_capsules = DenseCaps(
            *(num_children, num_classes, pose_size, class_size),
            routing=create_routing(routing, **(routing_options or {})),
            sharing=sharing,
            weight_std=std,
        )
        self.decoder = make_decoder(self, class_size, decoder_hidden, pose_scale)

    def route(self, images: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        children = self.primary(self.features(self.pad(images)))
        if self.inner is not None:
            poses = torch.einsum("bik,ikr->bir", children.flatten().poses, self.inner)
            children = Capsules.from_poses(poses.unflatten(1, children.activations.shape[1:]))
        return {"class_capsules": self.class_capsules.route(children, return_trace=return_trace)}

    def conclude(self, results: Mapping[str, RoutingResult], classes: Tensor | None = None) -> ModelOutput:
        parents = results["class_capsules"].capsules
        drawn = None if self.draws_winner else classes
        return ModelOutput(parents.activations, parents.poses, self.decoder(parents, drawn))


class CodeNetwork(ImageModel):
    """An autoencoder with the stem and decoder of CapsNet-Small: a free code, and the true class is given.

    Args:
        image_shape, num_classes: see ImageModel.
        code: its size.
        decoder_hidden: of the decoder.
    """

    name = "code-network"
    least_size = SMALL_STEM_LEAST_SIZE
    is_told_class = True

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        code: int = 16,
        decoder_hidden: Sequence[int] | None = None,
    ) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes)
        self.features, self.primary = small_stem(image_shape[0]), small_primary()
        size = prod(map_size(nn.Sequential(self.features, self.primary), self.padded_shape[1:]))
        # normalised, so that the decoder sees it from the start, as it sees scaled poses
        self.encoder = nn.Sequential(nn.Linear(128 * size, code), nn.BatchNorm1d(code, affine=False))
        self.decoder = make_decoder(self, code, decoder_hidden, 1.0)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        maps = self.primary.conv(self.features(self.pad(images)))
        poses_BJD = self.encoder(maps.flatten(1).relu()).unsqueeze(1).expand(-1, self.num_classes, -1)
        capsules = Capsules.from_poses(poses_BJD)
        scores = capsules.activations.detach() * 0  # it does not answer
        return ModelOutput(scores, poses_BJD, self.decoder(capsules, classes))


def make_decoder(model: ImageModel, size: int, hidden: Sequence[int] | None, pose_scale: float) -> Decoder:
    """The decoder of a network with poses of this size."""
    like = (model.num_classes, size, model.image_shape)
    if hidden is None:
        return ConvDecoder(*like, pose_scale=pose_scale)
    return FullyConnectedDecoder(*like, hidden=tuple(hidden), pose_scale=pose_scale)
