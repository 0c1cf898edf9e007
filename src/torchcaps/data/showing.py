"""Which images of a set are shown, and what is said of each."""

import numpy as np

from torchcaps.data.sets import ImageSet

MARKS = {  # smallNORB's numbers as instance, degrees of elevation and azimuth, lighting
    "instance": "#{}".format,
    "elevation": lambda number: f"e{30 + 5 * number}",
    "azimuth": lambda number: f"a{10 * number}",
    "lighting": "l{}".format,
}


def even_choice(image_set: ImageSet, num_images: int) -> list[int]:
    """Numbers of images, as many of each class as of any other, evenly spread; of multi-label images the first."""
    if image_set.is_multi_label:
        return list(range(min(num_images, len(image_set))))
    share = max(num_images // image_set.num_classes, 1)
    chosen: list[int] = []
    for label in range(image_set.num_classes):
        members = np.flatnonzero(image_set.labels == label)
        places = np.linspace(0, len(members), min(share, len(members)), endpoint=False).astype(int)
        chosen += members[places].tolist()
    return chosen


def caption(image_set: ImageSet, number: int) -> str:
    """The classes of an image and, in a second line, what else is known of it."""
    labels = np.flatnonzero(image_set.labels[number]) if image_set.is_multi_label else [image_set.labels[number]]
    names = " + ".join(image_set.class_names[label] for label in labels) or "none"
    known = [
        MARKS.get(name, str)(int(values[number])) for name, values in image_set.factors.items() if values[number] >= 0
    ]
    return "\n".join([names, " ".join(known)] if known else [names])
