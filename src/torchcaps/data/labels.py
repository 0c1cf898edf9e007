"""Labels and the names of classes: what is right, and how those of data become those of a model."""

from collections.abc import Sequence

import numpy as np

from torchcaps.data.labelled import Kind

MAX_CLASSES = 100_000  # a label beyond it is a mistake, and naming that many classes would fill the memory


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
