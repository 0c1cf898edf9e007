"""What every capsule result stands beside: convolutional networks, and capsules without routing."""

from math import prod

from torch import Tensor, nn

from torchcaps.models.base import ImageModel, ModelOutput
from torchcaps.models.registry import register_model
from torchcaps.models.stems import SMALL_STEM_LEAST_SIZE, map_size, small_primary, small_stem


@register_model("cnn-baseline")
class BaselineCNN(ImageModel):
    """The CNN that Hinton, Sabour and Frosst compare with: two 5 x 5 convolutions with pooling, 1024 hidden units."""

    default_loss = "cross_entropy"
    gives_activations = False
    least_size = 4

    def __init__(
        self, *, image_shape: tuple[int, int, int], num_classes: int, multi_label: bool = False, dropout: float = 0.5
    ) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes, multi_label=multi_label, dropout=dropout)
        features = nn.Sequential(
            nn.Conv2d(image_shape[0], 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        hidden = 64 * prod(map_size(features, self.padded_shape[1:]))
        self.network = nn.Sequential(
            features,
            nn.Flatten(),
            nn.Linear(hidden, 1024),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(1024, num_classes),
        )

    def last_features(self, images: Tensor, /) -> Tensor:
        return self.network[:-1](self.pad(images))

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.network[-1](self.last_features(images)))


@register_model("cnn-small")
class SmallCNN(ImageModel):
    """The stem of CapsNet-Small with a linear classifier on its pooled features: under 200 K parameters."""

    default_loss = "cross_entropy"
    gives_activations = False
    least_size = SMALL_STEM_LEAST_SIZE

    def __init__(
        self, *, image_shape: tuple[int, int, int], num_classes: int, multi_label: bool = False, dropout: float = 0.2
    ) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes, multi_label=multi_label, dropout=dropout)
        self.network = nn.Sequential(
            small_stem(image_shape[0]),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(128 * 9, num_classes),
        )

    def last_features(self, images: Tensor, /) -> Tensor:
        return self.network[:-1](self.pad(images))

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.network[-1](self.last_features(images)))


@register_model("no-routing")
class NoRouting(ImageModel):
    """Stem and primary capsules of CapsNet-Small with a fully connected layer on the flattened poses."""

    default_loss = "cross_entropy"
    gives_activations = False
    least_size = SMALL_STEM_LEAST_SIZE

    def __init__(self, *, image_shape: tuple[int, int, int], num_classes: int, multi_label: bool = False) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes, multi_label=multi_label)
        self.features, self.primary = small_stem(image_shape[0]), small_primary()
        positions = map_size(nn.Sequential(self.features, self.primary), self.padded_shape[1:])
        self.classifier = nn.Linear(prod(positions) * self.primary.out_types * self.primary.out_size, num_classes)

    def last_features(self, images: Tensor, /) -> Tensor:
        return self.primary(self.features(self.pad(images))).poses.flatten(1)

    def forward(self, images: Tensor, classes: Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.classifier(self.last_features(images)))
