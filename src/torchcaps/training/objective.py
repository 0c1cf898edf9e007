"""What training minimises: the loss of each example, as a function of the progress of training."""

from collections.abc import Callable

from torch import Tensor

from torchcaps.losses import reconstruction_loss
from torchcaps.models import Model, ModelOutput
from torchcaps.tasks.task import ReadTargets
from torchcaps.training.config import TrainingConfig

Objective = Callable[[ModelOutput, Tensor, Tensor, float], Tensor]


def make_objective(model: Model, config: TrainingConfig, read_targets: ReadTargets | None = None) -> Objective:
    """(output, inputs, targets, progress in [0, 1]) -> loss of each example (B,): the task's, and that of a decoder.

    Args:
        model: what is trained.
        config: how.
        read_targets: gives the targets of all training examples, for balanced class weights.
    """
    of_task = model.task.make_loss(config, default=model.default_loss, read_targets=read_targets)
    weight = model.reconstruction_weight if config.reconstruction_weight is None else config.reconstruction_weight

    def objective(output: ModelOutput, inputs: Tensor, targets: Tensor, progress: float) -> Tensor:
        loss = of_task(output, targets, progress)
        if output.reconstruction is None:
            return loss
        return loss + reconstruction_loss(output.reconstruction.float(), inputs, weight=weight, reduction="none")

    return objective
