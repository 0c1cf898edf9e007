"""Loss and figures on data that are not trained on, and what norms need to know before."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.losses import reconstruction_loss
from torchcaps.models import Model
from torchcaps.training.batches import Batches
from torchcaps.training.diagnosis import Diverged, watch
from torchcaps.training.metrics import Tally
from torchcaps.training.objective import Objective
from torchcaps.training.optim import fresh_statistics, has_capsule_norms

STATISTICS_STEPS = 32  # of an epoch, from which norms take what they need for evaluation

Parts = Callable[[int], list[slice]]  # of a batch of this size, those that this process computes


@torch.no_grad()
def settle_statistics(model: Model, batches: Batches, epoch: int, parts: Parts) -> None:
    """Let the norms of the model remember what its own weights make of the training data of an epoch."""
    if not has_capsule_norms(model):
        return
    order = batches.order(epoch)
    with fresh_statistics(model):
        for step in range(min(STATISTICS_STEPS, batches.steps_per_epoch)):
            indices = batches.indices(order, step)
            for part in parts(len(indices)):
                inputs, targets = _on_device(model, batches.read(indices, part, epoch=epoch, step=step))
                model(inputs, model.task.classes(targets))


@torch.no_grad()
def evaluate(model: Model, batches: Batches, objective: Objective, tally: Tally, parts: Parts) -> Tally:
    """Count loss and figures over a whole dataset, this process taking its share of every batch."""
    model.eval()
    order = batches.evaluation_order()
    for step in range(batches.steps_per_epoch):
        indices = batches.indices(order, step)
        for part in parts(len(indices)):
            inputs, targets = _on_device(model, batches.read(indices, part))
            output = model(inputs, model.task.classes(targets))
            errors = None
            if output.reconstruction is not None:
                errors = reconstruction_loss(output.reconstruction, inputs, weight=1.0, reduction="none")
            tally.add(objective(output, inputs, targets, 1.0), model.task.measure(output, targets), errors)
    return tally


def validate(evaluate: Callable[[], Tally], model: Model, step: int) -> Tally:
    """What an evaluation on validation data finds, or which layer gives no number there."""
    found = evaluate()
    if math.isfinite(found.loss):
        return found
    with watch(model) as broken:
        evaluate()
    reason = f"what {broken[0]} gives for" if broken else "the loss of"
    raise Diverged(f"{reason} the validation data is not finite after step {step}; lower the learning rate")


def _on_device(model: Model, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    return pair[0].to(device), pair[1].to(device)
