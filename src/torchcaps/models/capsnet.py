"""Vector capsule networks: CapsNet as published, and a small one for CPUs."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from torch import Tensor, nn

from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.registry import register_model
from torchcaps.models.stems import SMALL_STEM_LEAST_SIZE, map_size, small_primary, small_stem
from torchcaps.nn import ConvDecoder, DenseCaps, FullyConnectedDecoder, PrimaryCaps, create_routing
from torchcaps.nn.decoder import Decoder
from torchcaps.routing import RoutingResult
from torchcaps.votes.sharing import takes_old_name

# With the margin loss and gradients through the couplings of three iterations EM learned nothing in two epochs of MNIST
# (89.90 % error, seed 0); with the loss of its authors and couplings that are constants for the gradient it has 1.07 %.
EM_OPTIONS = {"detach_couplings": True}
# Other activations that are no lengths gain by that loss, too: after two epochs of 1,600 embedded digits variational
# Bayes has 58.7 % of 1,000 others right with the margin loss and 96.9 % with this, Heinsen's 89.8 and 93.8 % (seed 0).

USUAL_CLASSES = 10

# Of CapsNet-Small as it was saved before its decoder could be chosen; it had factorised transformations then.
FORMER_DECODER: dict[str, Any] = {"decoder_hidden": [128, 256], "pose_scale": 1.0}
FORMER: dict[str, Any] = {"sharing": "factorised", **FORMER_DECODER}


class VectorCapsNet(ImageModel):
    """Features, primary capsules, class capsules, and a decoder that keeps the poses honest.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        features: from images to feature maps.
        primary: from feature maps to capsules.
        class_size: entries of a class capsule's pose.
        routing, routing_options: name of the routing (or "package.module:Class") and its options. Where
            activations are not lengths ("em", "vb", "heinsen", "self") the spread loss is the default; the couplings of
            "em" are constants for the gradient.
        sharing: "full", "shared" or "factorised" transformations of the class layer.
        weight_std: standard deviation at the start, None for the layer's own.
        reconstruct: have a decoder.
        decoder_hidden: widths of its hidden layers if it is fully connected; None for convolutions.
        pose_scale: of its inputs, see Decoder.
        scale_start: transformations of more than ten classes start J / 10 times as large. Couplings start as 1 / J, so
            that lengths start as 1 / J^2, and the gradient of the margin loss vanishes with them: in 300 steps with 100
            classes plain SGD does not leave its start, AdamW does.
    """

    @takes_old_name
    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool,
        features: nn.Module,
        primary: PrimaryCaps,
        class_size: int,
        routing: str,
        routing_options: dict[str, Any] | None,
        sharing: str,
        weight_std: float | None,
        reconstruct: bool,
        decoder_hidden: Sequence[int] | None = (512, 1024),
        pose_scale: float = 1.0,
        scale_start: bool = False,
        **options: Any,
    ) -> None:
        if scale_start:
            options["scale_start"] = True
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            class_size=class_size,
            routing=routing,
            routing_options=routing_options,
            sharing=sharing,
            reconstruct=reconstruct,
            **options,
        )
        if routing == "em":
            routing_options = EM_OPTIONS | (routing_options or {})
        class_routing = create_routing(routing, **(routing_options or {}))
        if not class_routing.activations_are_lengths and not multi_label:
            self.default_loss = "spread"
        self.features, self.primary = features, primary
        positions = map_size(nn.Sequential(features, primary), self.padded_shape[1:])
        self.class_capsules = DenseCaps(
            prod(positions) * primary.out_types,
            num_classes,
            primary.out_size,
            class_size,
            routing=class_routing,
            sharing=sharing,
            weight_std=started(weight_std, num_classes) if scale_start else weight_std,
        )
        self.decoder: Decoder | None = None
        if reconstruct:
            place = (num_classes, class_size, self.image_shape)
            self.decoder = (
                ConvDecoder(*place, pose_scale=pose_scale)
                if decoder_hidden is None
                else FullyConnectedDecoder(*place, hidden=tuple(decoder_hidden), pose_scale=pose_scale)
            )

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        # here and not left to the base class: torch.compile counts its recompilations by function
        return self.conclude(self.route(images), classes)

    def answer(self, images: Tensor, /) -> ModelOutput:
        return super().conclude(self.route(images))

    def route(self, images: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        children = self.primary(self.features(self.pad(images)))
        return {"class_capsules": self.class_capsules.route(children, return_trace=return_trace)}

    def conclude(self, results: Mapping[str, RoutingResult], classes: Tensor | None = None) -> ModelOutput:
        parents = results["class_capsules"].capsules
        reconstruction = None if self.decoder is None else self.decoder(parents, classes)
        return ModelOutput(parents.activations, parents.poses, reconstruction)


def started(weight_std: float | None, num_classes: int) -> float | None:
    """The deviation at the start that keeps lengths as they are with ten classes; None stays the layer's own.

    Example:
        >>> started(0.05, 5), started(0.05, 100)
        (0.05, 0.5)
    """
    return None if weight_std is None else weight_std * max(1.0, num_classes / USUAL_CLASSES)


@register_model("capsnet")
class CapsNet(VectorCapsNet):
    """The network of Sabour, Frosst and Hinton (2017): 8,215,568 parameters for 28 x 28 digits.

    Example:
        >>> model = CapsNet(image_shape=(1, 28, 28), num_classes=10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        8215568
    """

    least_size = 17

    @takes_old_name
    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        routing: str = "dynamic",
        routing_options: dict[str, Any] | None = None,
        sharing: str = "full",
        reconstruct: bool = True,
        class_size: int = 16,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            features=nn.Sequential(nn.Conv2d(image_shape[0], 256, 9), nn.ReLU()),
            primary=PrimaryCaps(256, 32, 8, kernel_size=9, stride=2),
            class_size=class_size,
            routing=routing,
            routing_options=routing_options,
            sharing=sharing,
            weight_std=0.01 if sharing == "full" else None,
            reconstruct=reconstruct,
        )


@register_model("capsnet-small")
class CapsNetSmall(VectorCapsNet):
    """A small capsule network for CPUs, whose poses say how a digit looks: strided convolutions with batch norm.

    316 K parameters for 28 x 28 digits; its decoder, which only training and pictures need, has 135 K more.

    Its arguments are those of VectorCapsNet that follow.

    Example:
        >>> model = CapsNetSmall(image_shape=(1, 28, 28), num_classes=10, reconstruct=False)
        >>> sum(parameter.numel() for parameter in model.parameters()) < 350_000
        True
    """

    least_size = SMALL_STEM_LEAST_SIZE
    # 10 times the paper's: with less, poses of a class are alike and the decoder draws mean digits; with more, lengths
    # say less well what is there (98.4 % of the demo's digits right with 40 times, after 12 epochs).
    reconstruction_weight = 0.005
    old_options: ClassVar[Mapping[str, Any]] = FORMER_DECODER

    @takes_old_name
    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        routing: str = "dynamic",
        routing_options: dict[str, Any] | None = None,
        sharing: str = "full",
        reconstruct: bool = True,
        class_size: int = 16,
        decoder_hidden: Sequence[int] | None = None,
        pose_scale: float = 64.0,
        scale_start: bool = False,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            features=small_stem(image_shape[0]),
            primary=small_primary(),
            class_size=class_size,
            routing=routing,
            routing_options=routing_options,
            sharing=sharing,
            weight_std=0.05,  # classes start at a length near 0.1, where the margin loss has something to say
            reconstruct=reconstruct,
            decoder_hidden=decoder_hidden,
            pose_scale=pose_scale,
            scale_start=scale_start,
        )
        hidden = None if decoder_hidden is None else list(decoder_hidden)
        self.options |= {"decoder_hidden": hidden, "pose_scale": pose_scale}


@register_model("capsnet-shared")
class CapsNetShared(VectorCapsNet):
    """Every place of the feature map is one child, and all children share their transformations (unless told not to).

    So the weights do not know how large a picture is: a network that learned on 28 x 28 pixels runs on 28 x 56, and
    finds two digits side by side (Su 2018). 140 K parameters, without a decoder unless one is asked for.

    Example:
        >>> small, wide = (CapsNetShared(image_shape=(1, 28, width), num_classes=10) for width in (28, 56))
        >>> wide.load_state_dict(small.state_dict())
        <All keys matched successfully>
    """

    least_size = SMALL_STEM_LEAST_SIZE

    @takes_old_name
    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        routing: str = "dynamic",
        routing_options: dict[str, Any] | None = None,
        sharing: str = "shared",
        reconstruct: bool = False,
        pose_size: int = 32,
        class_size: int = 16,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            features=small_stem(image_shape[0]),
            primary=PrimaryCaps(128, 1, pose_size, kernel_size=1),
            class_size=class_size,
            routing=routing,
            routing_options=routing_options,
            sharing=sharing,
            weight_std=0.05,  # larger, and lengths near 1 have no gradient left to come down
            reconstruct=reconstruct,
            decoder_hidden=(128, 256),
            pose_size=pose_size,
        )
