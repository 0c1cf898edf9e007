"""Labelled images in memory, and datasets of images or texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index as as_index
from typing import ClassVar, Generic, Self

import numpy as np

from torchcaps.data.labelled import Kind
from torchcaps.data.labels import check_labels

MAX_CHANNELS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images with labels, checked once here; a valid map-style dataset for torch.

    Attributes:
        images: As they are stored.
        labels: The class of each image.
        class_names: In the order of the labels.
        factors: What else is known of each image, by name: the instance of its class, the pose of the camera, the
            lighting; -1 where it is unknown.

    Shapes:
        images: uint8 (n, h, w) or (n, h, w, c)
        labels: int64 (n,), or bool (n, J) when an image may have several classes or none
        factors: each int64 (n,)

    Example:
        >>> images = np.zeros((3, 28, 28), dtype=np.uint8)
        >>> image_set = ImageSet(images=images, labels=np.array([0, 1, 1]), class_names=("cat", "dog"))
        >>> len(image_set), image_set[2][0].shape, image_set[2][1]
        (3, (28, 28), 1)
        >>> len(image_set.subset([0, 2]))
        2
    """

    kind: ClassVar[str] = "image"

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(self.class_names))
        check_images(self.images)
        check_labels(self.labels, len(self.images), self.num_classes)
        for name, values in self.factors.items():
            if values.dtype != np.int64 or values.shape != (len(self.images),):
                raise ValueError(
                    f"factor {name!r} must be int64 of shape {(len(self.images),)}, one value per image, "
                    f"got {values.dtype} of shape {values.shape}"
                )

    @property
    def inputs(self) -> np.ndarray:
        """What is classified: the images."""
        return self.images

    @property
    def num_classes(self) -> int:
        """Number of classes, J."""
        return len(self.class_names)

    @property
    def is_multi_label(self) -> bool:
        """Whether an image may have several classes or none."""
        return self.labels.ndim == 2

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, "int | np.ndarray"]:
        """One image (uint8) and its label: a number, or a row of booleans."""
        index = as_index(index)
        label = self.labels[index]
        return self.images[index], (label if self.is_multi_label else int(label))

    def read(self, indices: "Sequence[int] | np.ndarray", epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels with these numbers, the same in every epoch; a set that makes its images overrides this."""
        indices = np.asarray(indices)
        return self.images[indices], self.labels[indices]

    def subset(self, indices: "Sequence[int] | np.ndarray") -> "ImageSet":
        """The images with these numbers, in this order, as a copy."""
        indices = np.asarray(indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or len(indices) == 0:
            raise ValueError(
                f"indices must be a non-empty list of image numbers, got {indices.dtype} of shape {indices.shape}"
            )
        return ImageSet(
            images=self.images[indices],
            labels=self.labels[indices],
            class_names=self.class_names,
            factors={name: values[indices] for name, values in self.factors.items()},
        )

    def relabelled(self, labels: np.ndarray, class_names: tuple[str, ...]) -> Self:
        """The same images with other labels."""
        return replace(self, labels=labels, class_names=class_names)


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet(Generic[Kind]):
    """Training data, test data and validation data where there are any, and where they come from."""

    name: str
    train: Kind
    test: Kind | None
    origin: str
    terms: str
    validation: Kind | None = None

    def __post_init__(self) -> None:
        for what, part in (("test", self.test), ("validation", self.validation)):
            if part is None:
                continue
            if part.class_names != self.train.class_names or part.is_multi_label != self.train.is_multi_label:
                raise ValueError(f"{self.name}: training and {what} data must have the same classes and kind of labels")
            sizes = [images.inputs.shape[1:] for images in (self.train, part) if isinstance(images, ImageSet)]
            if len(set(sizes)) > 1:
                raise ValueError(
                    f"{self.name}: training images have shape {sizes[0]} but {what} images {sizes[1]}; make them alike"
                )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of every class, in the order of the labels."""
        return self.train.class_names


def check_images(images: np.ndarray) -> None:
    """Raise unless `images` is a non-empty uint8 array (n, h, w) or (n, h, w, c)."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.size == 0:
        raise ValueError(
            f"images must be uint8 of shape (n, h, w) or (n, h, w, c) and not empty, "
            f"got {images.dtype} of shape {images.shape}"
        )
    check_channels_last(images.shape)


def check_channels_last(shape: tuple[int, ...]) -> None:
    """Raise if images (n, h, w, c) have more channels than rows, and more than any picture has."""
    if len(shape) == 4 and shape[3] > max(shape[1], MAX_CHANNELS):
        raise ValueError(
            f"images of shape {shape} have more channels than rows; channels come last: "
            "use images.transpose(0, 2, 3, 1)"
        )
