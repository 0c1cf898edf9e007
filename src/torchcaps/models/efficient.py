"""Efficient-CapsNet: few capsules that see the whole image, routed by self-attention."""

from collections.abc import Sequence
from typing import Any

from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.registry import register_model
from torchcaps.models.stems import EFFICIENT_STEM_LEAST_SIZE, efficient_stem, map_size
from torchcaps.nn import DepthwisePrimaryCaps


@register_model("efficient-capsnet")
class EfficientCapsNet(VectorCapsNet):
    """The network of Mazzia, Salvetti and Chiaberge (2021): 161,824 parameters for 28 x 28 digits, and a decoder.

    Its 16 primary capsules each see the whole map, whatever the size of an image, as in the three networks of its
    authors. The published number counts the biases of all convolutions, scales and shifts of the batch norms and the
    biases of the couplings.

    Its arguments are those of VectorCapsNet that follow.

    Example:
        >>> model = EfficientCapsNet(image_shape=(1, 28, 28), num_classes=10, reconstruct=False)
        >>> sum(parameter.numel() for parameter in model.parameters())
        161824
    """

    least_size = EFFICIENT_STEM_LEAST_SIZE

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        routing: str = "self_attention",
        routing_options: dict[str, Any] | None = None,
        sharing: str = "full",
        reconstruct: bool = True,
        class_size: int = 16,
        decoder_hidden: Sequence[int] | None = (512, 1024),
        pose_scale: float = 1.0,
    ) -> None:
        stem = efficient_stem(image_shape[0])
        height, width = map_size(stem, tuple(max(size, self.least_size) for size in image_shape[1:]))
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            features=stem,
            primary=DepthwisePrimaryCaps(16, 8, (height, width)),
            class_size=class_size,
            routing=routing,
            routing_options=routing_options,
            sharing=sharing,
            weight_std=0.04,  # what its authors start with: He's rule with all 16 * 10 matrices as one kernel
            reconstruct=reconstruct,
            decoder_hidden=decoder_hidden,
            pose_scale=pose_scale,
        )
        hidden = None if decoder_hidden is None else list(decoder_hidden)
        self.options |= {"decoder_hidden": hidden, "pose_scale": pose_scale}
