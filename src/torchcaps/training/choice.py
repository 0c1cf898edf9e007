"""Which epoch is kept: what is better on validation."""

from math import inf

from torchcaps.tasks import Task
from torchcaps.training.events import Progress
from torchcaps.training.metrics import Tally


def is_better(found: Tally, progress: Progress, task: Task) -> bool:
    """Whether an epoch takes the place of the one that was kept so far.

    The higher quality, such as the accuracy, is better, of equal ones the lower loss. Where images are reconstructed
    that would favour early epochs, whose drawings are poor: a few answers more or less are chance, the loss of the
    drawings is not. There all epochs that chance may part from the highest quality count as equal (of accuracies: those
    within one standard error), and the lower loss is better. One epoch is kept at a time: when a higher quality leaves
    it behind, the epoch with that quality takes its place.
    """
    quality = task.quality(found.figures)
    best = task.quality(progress.best_figures) if progress.best_figures else -inf
    if found.reconstruction_error is None:
        return (quality, -found.loss) > (best, -progress.best_loss)
    highest = max(progress.highest_quality, quality)
    least = highest - task.chance(highest, found.num_examples)
    if quality < least:
        return False
    return best < least or found.loss < progress.best_loss
