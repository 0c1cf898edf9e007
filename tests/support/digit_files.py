"""A few real digits as a file, for experiments that would take too long on all of them."""

from pathlib import Path

import numpy as np

from torchcaps.data import load_data


def write_digits(path: Path, *, num_train: int = 60, num_test: int = 20) -> Path:
    """An .npz of embedded digits, all classes in turn."""
    data = load_data("digits")
    chosen = {}
    for part, name, num in ((data.train, "train", num_train), (data.test, "test", num_test)):
        order = np.argsort(part.labels, kind="stable").reshape(10, -1)[:, : num // 10].T.ravel()
        chosen |= {f"x_{name}": part.images[order], f"y_{name}": part.labels[order]}
    np.savez(path, **chosen)
    return path
