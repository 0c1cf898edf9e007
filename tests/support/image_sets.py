"""Image sets whose images carry their own number."""

import numpy as np

from torchcaps.data import ImageSet


def make_set(labels, num_classes=None, shape=(4, 5)) -> ImageSet:
    """A set whose images carry their own number."""
    labels = np.asarray(labels)
    images = np.zeros((len(labels), *shape), dtype=np.uint8)
    images[:, 0, 0] = np.arange(len(labels)) % 256
    if num_classes is None:
        num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    return ImageSet(images=images, labels=labels, class_names=tuple(f"class {n}" for n in range(num_classes)))


def numbers(image_set: ImageSet) -> list[int]:
    return image_set.images[:, 0, 0].tolist()
