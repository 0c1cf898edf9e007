"""Mixup: the network sees two pictures in one and is to tell both, each by its share (Zhang et al. 2018)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import ModelOutput
from torchcaps.training.batches import MIX, Batches, stream_seed
from torchcaps.training.objective import Objective


@dataclass(frozen=True)
class Mixture:
    """Part of a batch as it is trained on, and whose it is.

    Attributes:
        inputs: mixed.
        targets: of what has the larger share.
        others: targets of what was mixed into it; None where nothing was.
        share: of the first.
    """

    inputs: Tensor
    targets: Tensor
    others: Tensor | None = None
    share: float = 1.0

    def to(self, device: torch.device) -> "Mixture":
        """The same on a device."""
        others = None if self.others is None else self.others.to(device)
        return Mixture(self.inputs.to(device), self.targets.to(device), others, self.share)

    def losses(self, objective: Objective, output: ModelOutput, progress: float) -> Tensor:
        """The loss of each example: (B,)."""
        losses = objective(output, self.inputs, self.targets, progress)
        if self.others is None:
            return losses
        if output.reconstruction is not None:
            raise ValueError("mixup shows two pictures in one, and a decoder draws one; leave out mixup or the decoder")
        return self.share * losses + (1 - self.share) * objective(output, self.inputs, self.others, progress)


def read_mixture(
    batches: Batches, indices: Tensor, part: slice, *, epoch: int, step: int, mixup: float | None
) -> Mixture:
    """One part of a batch; under mixup each example is mixed with its mirror image in the order of the batch.

    The share is one for the whole batch and depends on (seed, epoch, step) alone, so that it does not matter who reads
    which part, nor whether training was stopped before.
    """
    inputs, targets = batches.read(indices, part, epoch=epoch, step=step)
    if mixup is None:
        return Mixture(inputs, targets)
    if not inputs.is_floating_point():
        raise ValueError("mixup adds pictures; numbers of words cannot be added: leave it out for texts")
    share = float(np.random.default_rng(stream_seed(batches.seed, MIX, epoch, step)).beta(mixup, mixup))
    share = max(share, 1 - share)
    others, other_targets = batches.read(indices.flip(0), part, epoch=epoch, step=step)
    return Mixture(share * inputs + (1 - share) * others, targets, other_targets, share)
