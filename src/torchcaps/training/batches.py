"""Batches whose order and augmentation depend on (seed, epoch, step) alone, so that a resumed run sees the same."""

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.augment import Augmentation
from torchcaps.data.text import bucket
from torchcaps.inputs.base import Inputs
from torchcaps.inputs.source import Examples

# Distinct streams of random numbers.
ORDER, AUGMENT, DROPOUT, BUCKETS, MIX = range(5)


def stream_seed(seed: int, *key: int) -> int:
    """A seed for one stream of random numbers, unrelated to that of any other key."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *key: int) -> torch.Generator:
    """A CPU generator for one stream of random numbers."""
    return torch.Generator().manual_seed(stream_seed(seed, *key))


class Batches:
    """Reads, prepares and augments batches of a dataset.

    Args:
        data: an ImageSet or a TextSet (read whole batches at once), or any dataset of (input, target).
        inputs: from raw inputs to the model's; inputs that have a length are put together with others like them.
        augmentation: of training images, None for none.
        batch_size: over all processes.
        seed: of order and augmentation.
        least_size: a last batch with fewer examples is left out (every process needs one).
    """

    def __init__(
        self,
        data: Examples,
        inputs: Inputs,
        *,
        batch_size: int,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        least_size: int = 1,
    ) -> None:
        if len(data) == 0:
            raise ValueError("the dataset is empty: there is nothing to train or evaluate on")
        self.source, self.inputs, self.augmentation = inputs.open(data), inputs, augmentation
        self.batch_size, self.seed, self.least_size = batch_size, seed, least_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one pass over the data; the last batch may be smaller."""
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (rest >= self.least_size)

    def order(self, epoch: int) -> Tensor:
        """The order of the examples in one epoch: random, but such that a batch holds those of similar length."""
        order = torch.randperm(len(self.source), generator=generator(self.seed, ORDER, epoch))
        if self.source.lengths is None:
            return order
        draws = np.random.default_rng(stream_seed(self.seed, BUCKETS, epoch))
        return torch.from_numpy(bucket(order.numpy(), self.source.lengths, self.batch_size, draws))

    def evaluation_order(self) -> Tensor:
        """The order in which the examples are evaluated: their own, or by length."""
        if self.source.lengths is None:
            return torch.arange(len(self.source))
        return torch.from_numpy(np.argsort(self.source.lengths, kind="stable"))

    def indices(self, order: Tensor, step: int) -> Tensor:
        """The examples of one step."""
        return order[step * self.batch_size : (step + 1) * self.batch_size]

    def read(self, indices: Tensor, part: slice, *, epoch: int | None = None, step: int = 0) -> tuple[Tensor, Tensor]:
        """What the model takes, and the targets, of one part of a batch; augmented when an epoch is given.

        Random numbers are drawn for the whole batch, so that it does not matter who reads which part of it.
        """
        raw, targets = self.source.read(indices[part].tolist(), epoch or 0)
        targets, augmentation = torch.as_tensor(targets), self.augmentation
        if epoch is None or augmentation is None:
            return self.inputs.stack(raw), targets
        stream = generator(self.seed, AUGMENT, epoch, step)
        augmentation.draw(part.start, stream)  # skips those of the images before this part
        is_cropping = augmentation.crop is not None
        return self.inputs.augmented(raw, lambda images: augmentation(images, stream), is_cropping=is_cropping), targets

    def targets(self) -> Tensor:
        """Targets of all examples."""
        return torch.as_tensor(self.source.targets())
