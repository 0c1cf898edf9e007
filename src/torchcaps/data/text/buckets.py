"""Batches of texts of similar length, so that little is computed on padding."""

import numpy as np

POOL = 50  # batches that are sorted together: enough to save padding, few enough to stay random


def bucket(order: np.ndarray, lengths: np.ndarray, batch_size: int, generator: np.random.Generator) -> np.ndarray:
    """A random order, rearranged so that batches hold texts of similar length.

    Pools of POOL batches are sorted by length and cut into batches, whose order is then shuffled; a smaller last batch
    stays last.

    Shapes:
        order, lengths: (n,) -> (n,)
    """
    pool = POOL * batch_size
    parts = [order[start : start + pool] for start in range(0, len(order), pool)]
    sorted_order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    num_whole = len(order) // batch_size
    whole, rest = sorted_order[: num_whole * batch_size], sorted_order[num_whole * batch_size :]
    return np.concatenate([generator.permutation(whole.reshape(num_whole, batch_size)).reshape(-1), rest])
