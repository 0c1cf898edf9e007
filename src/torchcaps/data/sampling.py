"""Some of a set, every class in its share: validation data, and fewer examples."""

import numpy as np

from torchcaps.checks import check_count, check_positive
from torchcaps.data.labelled import Kind


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


def _rarest_class(labels_NJ: np.ndarray) -> np.ndarray:
    """For each row the least frequent of its classes; J for a row without any."""
    counts_J = labels_NJ.sum(axis=0)
    unlisted = len(labels_NJ) + 1
    counts_NJ = np.where(labels_NJ, counts_J, unlisted)
    return np.where(labels_NJ.any(axis=1), counts_NJ.argmin(axis=1), labels_NJ.shape[1])
