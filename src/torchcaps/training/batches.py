"""Batches whose order and augmentation depend on (seed, epoch, step) alone, so that a resumed run sees the same."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.augment import Augmentation
from torchcaps.data.sets import ImageSet
from torchcaps.data.text import TextEncoding, bucket
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import pad

# Distinct streams of random numbers.
ORDER, AUGMENT, DROPOUT, BUCKETS = range(4)


class Examples(Protocol):
    """Any map-style dataset of (image or text, label): an ImageSet, a TextSet, or a torch Dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def stream_seed(seed: int, *key: int) -> int:
    """A seed for one stream of random numbers, unrelated to that of any other key."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> 1)


def generator(seed: int, *key: int) -> torch.Generator:
    """A CPU generator for one stream of random numbers."""
    return torch.Generator().manual_seed(stream_seed(seed, *key))


class Batches:
    """Reads, preprocesses and augments batches of a dataset.

    Args:
        data: an ImageSet (read whole batches at once) or any dataset of (image, label).
        preprocessing: from raw inputs to the model's.
        augmentation: of training images, None for none.
        batch_size: over all processes.
        seed: of order and augmentation.
        least_size: a last batch with fewer examples is left out (every process needs one).
    """

    def __init__(
        self,
        data: Examples,
        preprocessing: Any,
        *,
        batch_size: int,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        least_size: int = 1,
    ) -> None:
        if len(data) == 0:
            raise ValueError("the dataset is empty: there is nothing to train or evaluate on")
        self.data, self.preprocessing, self.augmentation = data, preprocessing, augmentation
        self.batch_size, self.seed, self.least_size = batch_size, seed, least_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in one pass over the data; the last batch may be smaller."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole + (rest >= self.least_size)

    def order(self, epoch: int) -> Tensor:
        """The order of the examples in one epoch."""
        return torch.randperm(len(self.data), generator=generator(self.seed, ORDER, epoch))

    def evaluation_order(self) -> Tensor:
        """The order in which the examples are evaluated."""
        return torch.arange(len(self.data))

    def indices(self, order: Tensor, step: int) -> Tensor:
        """The examples of one step."""
        return order[step * self.batch_size : (step + 1) * self.batch_size]

    def read(self, indices: Tensor, part: slice, *, epoch: int | None = None, step: int = 0) -> tuple[Tensor, Tensor]:
        """Images (n, C, H, W) and targets of one part of a batch; augmented when an epoch is given.

        Random numbers are drawn for the whole batch, so that it does not matter who reads which part of it.
        """
        images, targets = self.raw(indices[part].tolist(), epoch or 0)
        if epoch is None or self.augmentation is None:
            return self.preprocessing(images), targets
        stream = generator(self.seed, AUGMENT, epoch, step)
        self.augmentation.draw(part.start, stream)  # skips those of the images before this part
        # a random crop takes the place of the centre crop
        prepare = self.preprocessing.before_crop if self.augmentation.crop else self.preprocessing.centre_crop
        return self.preprocessing.after_crop(self.augmentation(prepare(images), stream)), targets

    def raw(self, indices: Sequence[int], epoch: int = 0) -> tuple[Any, Tensor]:
        """Raw images and targets of the given examples; some sets make new ones in every epoch."""
        if isinstance(self.data, ImageSet):
            images, labels = self.data.read(indices, epoch)
            return images, torch.from_numpy(labels)
        items = [self.data[index] for index in indices]
        images = np.stack([np.asarray(image) for image, _ in items])
        return images, torch.as_tensor(np.stack([np.asarray(label) for _, label in items]))

    def targets(self) -> Tensor:
        """Targets of all examples."""
        if isinstance(self.data, ImageSet):
            return torch.from_numpy(self.data.labels)
        return torch.as_tensor(np.stack([np.asarray(self.data[index][1]) for index in range(len(self.data))]))


class TextBatches(Batches):
    """Batches of texts of similar length; the texts are encoded once.

    Args:
        data: any dataset of (text, label).
        encoding: from texts to numbers.
        batch_size, seed, least_size: see Batches.
    """

    def __init__(
        self, data: Examples, encoding: TextEncoding, *, batch_size: int, seed: int = 0, least_size: int = 1
    ) -> None:
        super().__init__(data, encoding, batch_size=batch_size, seed=seed, least_size=least_size)
        self.rows = encoding.encode([data[index][0] for index in range(len(data))])
        self.lengths = np.array([len(row) for row in self.rows])
        self.all_targets = super().targets()

    def order(self, epoch: int) -> Tensor:
        """Random, but such that a batch holds texts of similar length."""
        draws = np.random.default_rng(stream_seed(self.seed, BUCKETS, epoch))
        return torch.from_numpy(bucket(super().order(epoch).numpy(), self.lengths, self.batch_size, draws))

    def evaluation_order(self) -> Tensor:
        """By length."""
        return torch.from_numpy(np.argsort(self.lengths, kind="stable"))

    def read(self, indices: Tensor, part: slice, *, epoch: int | None = None, step: int = 0) -> tuple[Tensor, Tensor]:
        """Tokens (n, T) and targets of one part of a batch."""
        chosen = indices[part]
        return pad([self.rows[index] for index in chosen.tolist()]), self.all_targets[chosen]

    def targets(self) -> Tensor:
        """Targets of all texts."""
        return self.all_targets


def make_batches(
    data: Examples,
    preprocessing: Preprocessing | TextEncoding,
    *,
    batch_size: int,
    augmentation: Augmentation | None = None,
    seed: int = 0,
    least_size: int = 1,
) -> Batches:
    """Batches of images or of texts, by what prepares them; see Batches. Texts are not augmented."""
    common: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "least_size": least_size}
    if isinstance(preprocessing, TextEncoding):
        return TextBatches(data, preprocessing, **common)
    return Batches(data, preprocessing, augmentation=augmentation, **common)
