"""Capsules behind a network that people already have: one family, with pooling as the plain rival."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice, check_count
from torchcaps.models.backbones import build_backbone
from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.capsnet import started
from torchcaps.models.feature_cache import FeatureCache
from torchcaps.models.matrix import SOFT
from torchcaps.models.registry import register_model
from torchcaps.nn import (
    CapsuleNorm,
    ClassCaps,
    ConvCaps2d,
    PrimaryCaps,
    PrimaryMatrixCaps,
    ResidualCaps,
    create_routing,
)
from torchcaps.routing import RoutingResult
from torchcaps.versions import is_exporting
from torchcaps.windows import GridWindow

HEADS = {"dense": "dynamic", "attention": "attention", "matrix": "em", "pool": ""}  # with the routing of each
DENSE_SIZES = 8, 16  # entries of a pose of the first capsules and of the classes, as in CapsNet
MATRIX_SIZE = 16
DENSE_STD = 0.05  # of transformations of the dense head; more where there are more than ten classes


@register_model("backbone-capsules")
class BackboneCapsules(ImageModel):
    """A network that gives feature maps, and capsules on them; transformations are shared by all places of the map.

    - `head="dense"`: vector capsules from a 1 x 1 convolution, routed to the classes; lengths are activations.
    - `head="matrix"`: matrix capsules with norms, routed to the classes by EM; `capsule_layers` puts residual
      convolutional capsule layers between.
    - `head="attention"`: vector capsules with inverted attention; one linear map, the same for all classes, reads a
      class's logit off its pose (Tsai et al. 2020).
    - `head="pool"`: the mean of the map and a linear layer: no capsules, the same network otherwise.

    Args:
        image_shape, num_classes, multi_label: see ImageModel.
        backbone: a name, such as "resnet-20"; a folder of transformers or OWNER/NAME on the hub (weights are read there
            once, and saved with the model); "package.module:function"; or a torch module, which a saved folder cannot
            name: give it one with `register_backbone`.
        backbone_options: of the function that makes the backbone.
        head: see above.
        routing, routing_options: of the class capsules, None for that of the head.
        types: capsule types of a place.
        capsule_layers: residual layers of 3 x 3 windows between the first capsules and the classes ("matrix" alone).
        frozen: the backbone stays as it is; its maps are kept for pictures that come again, so train without
            augmentation to make use of that.
        backbone_rate: learning rate of the backbone, relative to that of the head; smaller for trained ones.
        backbone_config: what a saved folder says of a network of transformers; not to be given.

    Example:
        >>> model = BackboneCapsules(image_shape=(3, 32, 32), num_classes=10, backbone="resnet-8")
        >>> model(torch.rand(2, 3, 32, 32)).scores.shape
        torch.Size([2, 10])
        >>> list(model.route(torch.rand(2, 3, 32, 32)))
        ['class_capsules']
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        multi_label: bool = False,
        backbone: str | nn.Module = "resnet-20",
        backbone_options: dict[str, Any] | None = None,
        head: str = "dense",
        routing: str | None = None,
        routing_options: dict[str, Any] | None = None,
        types: int = 16,
        capsule_layers: int = 0,
        frozen: bool = False,
        backbone_rate: float = 1.0,
        backbone_config: dict[str, Any] | None = None,
    ) -> None:
        check_choice("head", head, HEADS)
        check_count("capsule_layers", capsule_layers, least=0)
        self.gives_activations = head in ("dense", "matrix")  # pyrefly: ignore[read-only] (before the task is made)
        super().__init__(
            image_shape=image_shape,
            num_classes=num_classes,
            multi_label=multi_label,
            backbone=backbone if isinstance(backbone, str) else None,
            backbone_options=backbone_options,
            head=head,
            routing=routing,
            routing_options=routing_options,
            types=check_count("types", types),
            capsule_layers=capsule_layers,
            frozen=frozen,
            backbone_rate=backbone_rate,
        )
        found = build_backbone(backbone, self.image_shape, backbone_options, backbone_config)
        self.options["backbone_config"] = found.config
        self.head, self.frozen, self.features = head, frozen, found.module
        self.cache = FeatureCache() if frozen else None
        if frozen:
            self.features.requires_grad_(False).eval()
        if capsule_layers and head != "matrix":
            raise ValueError(f"capsule_layers are for head='matrix', got head={head!r}; leave them out")
        if head == "pool":
            if routing is not None or routing_options:
                raise ValueError("head='pool' has no routing; choose head='dense', 'matrix' or 'attention'")
            self.default_loss = "cross_entropy"
            self.classifier = nn.Linear(found.channels, num_classes)
        elif head == "matrix":
            self._build_matrix(found.channels, num_classes, types, capsule_layers, routing, routing_options)
        else:
            self._build_vectors(found.channels, num_classes, types, routing, routing_options)
        if backbone_rate != 1.0 and not frozen:
            self.learning_rates |= {f"features.{name}": backbone_rate for name, _ in self.features.named_parameters()}

    def _build_vectors(
        self, channels: int, num_classes: int, types: int, routing: str | None, options: dict[str, Any] | None
    ) -> None:
        chosen = create_routing(routing or HEADS[self.head], **(options or {}))
        child_size, class_size = DENSE_SIZES
        self.primary = PrimaryCaps(channels, types, child_size, kernel_size=1)
        is_dense = self.head == "dense"
        self.class_capsules = ClassCaps(
            *(types, num_classes, child_size, class_size),
            coordinates=False,
            routing=chosen,
            weight_std=started(DENSE_STD, num_classes) if is_dense else None,
        )
        if not is_dense:
            self.default_loss = "cross_entropy"
            self.read_logit = nn.Linear(class_size, 1)
        elif not chosen.activations_are_lengths and not self.multi_label:
            self.default_loss = "spread"

    def _build_matrix(
        self,
        channels: int,
        num_classes: int,
        types: int,
        num_layers: int,
        routing: str | None,
        options: dict[str, Any] | None,
    ) -> None:
        name = routing or HEADS["matrix"]
        chosen = {**SOFT.routing_options.get(name, {}), **(options or {})}
        layer: dict[str, Any] = {"pose": "matrix", "start": SOFT.start}
        weighs = create_routing(name, **chosen).weighs_children
        norm = CapsuleNorm(types, pose_affine=True, logit_affine=weighs)
        self.primary = PrimaryMatrixCaps(channels, types, MATRIX_SIZE, bias=False, norm=norm)
        nn.init.xavier_uniform_(self.primary.conv.weight)
        self.blocks = nn.ModuleList(
            ResidualCaps(
                ConvCaps2d(
                    *(types, types, MATRIX_SIZE, MATRIX_SIZE, 3),
                    padding="same",
                    routing=create_routing(name, **chosen),
                    norm=CapsuleNorm(types),
                    **layer,
                )
            )
            for _ in range(num_layers)
        )
        self.class_capsules = ClassCaps(
            *(types, num_classes, MATRIX_SIZE, MATRIX_SIZE),
            coordinates=SOFT.coordinates,
            routing=create_routing(name, **chosen),
            norm=CapsuleNorm(num_classes, logit_affine=True),
            **layer,
        )
        self.default_loss = "margin" if self.multi_label else SOFT.loss

    def train(self, mode: bool = True) -> "BackboneCapsules":
        """As usual, but for a frozen backbone, whose norms keep what they know."""
        super().train(mode)
        if self.frozen:
            self.features.eval()
        return self

    @property
    def frozen_parts(self) -> tuple[nn.Module, ...]:
        return (self.features,) if self.frozen else ()

    def maps(self, images: Tensor) -> Tensor:
        """What the backbone sees in the images: (B, channels, h, w)."""
        images = self.pad(images)
        if self.cache is None:
            return self.features(images)
        if images.requires_grad or torch.compiler.is_compiling() or is_exporting():
            return self.features(images)
        with torch.no_grad():
            return self.cache(self.features, images)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        if self.head == "pool":
            return ModelOutput(self.classifier(self.last_features(images)))
        return self.conclude(self.route(images), classes)

    @property
    def is_routed(self) -> bool:
        return self.head != "pool"

    def route(self, images: Tensor, /, *, return_trace: bool = False) -> dict[str, RoutingResult]:
        if self.head == "pool":
            return super().route(images, return_trace=return_trace)
        capsules, results = self.primary(self.maps(images)), {}
        for number, block in enumerate(self.blocks if self.head == "matrix" else ()):
            assert isinstance(block, ResidualCaps)
            capsules, inner = block.route(capsules, return_trace=return_trace)
            results |= {f"blocks.{number}.{name}": result for name, result in inner.items()}
        results["class_capsules"] = self.class_capsules.route(capsules, return_trace=return_trace)
        return results

    def conclude(self, results: Mapping[str, RoutingResult], classes: Tensor | None = None) -> ModelOutput:
        capsules = results["class_capsules"].capsules
        if self.head == "attention":
            return ModelOutput(self.read_logit(capsules.poses).squeeze(-1), capsules.poses)
        return ModelOutput(capsules.activations, capsules.poses)

    def last_features(self, images: Tensor, /) -> Tensor:
        if self.head != "pool":
            return super().last_features(images)
        return self.maps(images).mean((2, 3))

    def first_window(self) -> GridWindow:
        """The cell of the image that a place of the map stands for.

        What it sees is larger, and of deep networks nearly all of the image; its middle lies there.
        """
        with torch.no_grad():
            maps = self.maps(torch.zeros(1, *self.image_shape, device=next(self.parameters()).device))
        cell = [-(-size // num) for size, num in zip(self.image_shape[1:], maps.shape[2:], strict=True)]
        return GridWindow((0, 0), (cell[0], cell[1]), (cell[0], cell[1]))

    def config(self) -> dict[str, Any]:
        if self.options["backbone"] is None:
            raise ValueError(
                "a backbone that was given as a module has no name by which a saved folder could build it again; "
                "register a function that makes it with torchcaps.models.register_backbone, and give its name"
            )
        return super().config()
