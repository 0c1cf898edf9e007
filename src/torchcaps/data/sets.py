"""Labelled sets in memory, and the split of training data into training and validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index as as_index
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from torchcaps.checks import check_count, check_positive

MAX_CHANNELS = 4
MAX_CLASSES = 100_000  # a label beyond it is a mistake, and naming that many classes would fill the memory
# The parts of a dataset, and what their folders, files and rows are called.
PART_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "validation": ("validation", "valid", "val", "dev"),
}


class DataNotice(UserWarning):
    """Something about the data that the user should know."""


class LabelledSet(Protocol):
    """What images and texts with labels have in common.

    Attributes:
        kind: what the inputs are called: "image", "text".
    """

    kind: ClassVar[str]

    @property
    def inputs(self) -> Any:
        """What is classified."""

    @property
    def labels(self) -> np.ndarray:
        """int64 (n,), or bool (n, J) when an input may have several classes or none."""
        ...

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of every class, in the order of the labels."""
        ...

    @property
    def is_multi_label(self) -> bool:
        """Whether an input may have several classes or none."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

    def subset(self, indices: "Sequence[int] | np.ndarray") -> Self:
        """The inputs with these numbers, in this order."""
        ...

    def relabelled(self, labels: np.ndarray, class_names: tuple[str, ...]) -> Self:
        """The same inputs with other labels."""
        ...


Kind = TypeVar("Kind", bound=LabelledSet)


class Parts(NamedTuple, Generic[Kind]):
    """What is trained on, tested on and chosen on, as far as a source has these."""

    train: Kind
    test: Kind | None = None
    validation: Kind | None = None


def which_part(name: str) -> str | None:
    """The part that a folder, a file or a row of this name belongs to; None for any other name."""
    name = name.strip().lower()
    return next((part for part, names in PART_NAMES.items() if name in names), None)


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


def split_validation(labelled: Kind, fraction: float, seed: int) -> tuple[Kind, Kind]:
    """Split training data into training and validation data, class by class.

    Of the n examples of a class round(fraction n) become validation data, at least one and never all of them;
    the only example of a class stays in training. An example with several classes counts for its rarest one. Both
    parts keep the order of the whole.

    Args:
        labelled: The training data.
        fraction: Share of validation data, between 0 and 1.
        seed: The same seed gives the same split.

    Returns:
        The training part and the validation part.
    """
    train, validation = split_indices(labelled.labels, fraction, seed)
    return labelled.subset(train), labelled.subset(validation)


def split_indices(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the examples of both parts; see `split_validation`."""
    if check_positive("fraction", fraction) >= 1:
        raise ValueError(f"fraction must be below 1, got {fraction}")
    generator = np.random.default_rng(seed)
    strata = _rarest_class(labels) if labels.ndim == 2 else labels
    held_out = np.zeros(len(labels), dtype=bool)
    for stratum in np.unique(strata):
        members = generator.permutation(np.flatnonzero(strata == stratum))
        if len(members) > 1:
            num_held_out = min(max(round(fraction * len(members)), 1), len(members) - 1)
            held_out[members[:num_held_out]] = True
    if not held_out.any():
        raise ValueError("no class has two examples, so none can be spared for validation; give more training data")
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def with_classes(labelled: Kind, class_names: tuple[str, ...], source: str) -> Kind:
    """The same examples with the class numbers of a model, matched by name.

    Numbered classes have no names, so they are taken for the classes with these numbers.

    Args:
        labelled: The examples; some of the model's classes may be missing among theirs.
        class_names: Those of the model.
        source: Where the examples come from, for errors.
    """
    names = labelled.class_names
    are_numbers = any(group == tuple(map(str, range(len(group)))) for group in (names, class_names))
    if names == class_names or (are_numbers and len(names) == len(class_names)):
        return labelled
    unknown = [name for name in names if name not in class_names]
    if unknown:
        raise ValueError(
            f"{source} has {len(names)} classes and the model {len(class_names)}, and it has none that is called "
            f"{unknown[0]!r} but {few(class_names)}"
        )
    number = np.array([class_names.index(name) for name in names])
    if not labelled.is_multi_label:
        return labelled.relabelled(number[labelled.labels], class_names)
    labels = np.zeros((len(labelled), len(class_names)), dtype=bool)
    labels[:, number] = labelled.labels
    return labelled.relabelled(labels, class_names)


def few(names: Sequence[str], most: int = 8) -> str:
    """The first names of a list, for errors."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def choose_some(labelled: Kind, num: int, seed: int) -> Kind:
    """At most `num` examples, every class in its share; the same seed chooses fewer among those it chooses as more.

    Args:
        labelled: The data.
        num: How many; all of them if there are no more.
        seed: The same seed gives the same examples.

    Returns:
        The examples, in the order of the whole.
    """
    if check_count("num", num) >= len(labelled):
        return labelled
    generator = np.random.default_rng(seed)
    strata = _rarest_class(labelled.labels) if labelled.is_multi_label else labelled.labels
    place = np.empty(len(labelled))  # of an example within its class, from 0 to 1
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        place[members] = (generator.permutation(len(members)) + 0.5) / len(members)
    return labelled.subset(np.sort(np.argsort(place, kind="stable")[:num]))


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


def check_labels(labels: np.ndarray, num_examples: int, num_classes: int, noun: str = "image") -> None:
    """Raise unless there is one label, or one row of J booleans, for each example."""
    if len(labels) != num_examples:
        raise ValueError(f"there are {num_examples} {noun}s but {len(labels)} labels; each {noun} needs one")
    if labels.dtype == np.int64 and labels.ndim == 1:
        check_label_range(labels, num_classes, noun)
    elif labels.dtype != np.bool_ or labels.ndim != 2 or labels.shape[1] != num_classes:
        raise ValueError(
            f"labels must be int64 of shape (n,) or bool of shape (n, J) with J = {num_classes} classes, "
            f"got {labels.dtype} of shape {labels.shape}"
        )


def check_label_range(labels: np.ndarray, num_classes: int, noun: str = "image") -> None:
    """Raise unless every label is a class number."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(wrong):
        raise ValueError(
            f"labels must lie in 0 to {num_classes - 1}, but {noun} {wrong[0]} has label {labels[wrong[0]]}"
        )


def numbered_classes(labels: np.ndarray) -> tuple[str, ...]:
    """Names "0", "1", ... for the classes of labels (n,), or of the columns of labels (n, J)."""
    num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1
    if num_classes > MAX_CLASSES:
        raise ValueError(f"labels must number the classes 0, 1, 2, ... below {MAX_CLASSES}, got {num_classes - 1}")
    return tuple(str(number) for number in range(num_classes))


def _rarest_class(labels_NJ: np.ndarray) -> np.ndarray:
    """For each row the least frequent of its classes; J for a row without any."""
    counts_J = labels_NJ.sum(axis=0)
    unlisted = len(labels_NJ) + 1
    counts_NJ = np.where(labels_NJ, counts_J, unlisted)
    return np.where(labels_NJ.any(axis=1), counts_NJ.argmin(axis=1), labels_NJ.shape[1])
