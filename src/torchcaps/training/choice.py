"""Which epoch is kept: what is better on validation."""

from math import sqrt

from torchcaps.training.events import Progress
from torchcaps.training.metrics import Tally


def standard_error(accuracy: float, num_examples: int) -> float:
    """Of an accuracy that was found on so many examples, binomial.

    Two right and two wrong answers are added (Agresti and Coull 1998), so that a perfect accuracy has one as well.

    Example:
        >>> round(standard_error(0.99, 500), 4), round(standard_error(1.0, 500), 4)
        (0.0052, 0.0028)
    """
    share = (accuracy * num_examples + 2) / (num_examples + 4)
    return sqrt(share * (1 - share) / (num_examples + 4))


def is_better(found: Tally, progress: Progress) -> bool:
    """Whether an epoch takes the place of the one that was kept so far.

    The higher accuracy is better, of equal ones the lower loss. Where images are reconstructed that would favour early
    epochs, whose drawings are poor: a few answers more or less are chance, the loss of the drawings is not. There all
    epochs within one standard error of the highest accuracy count as equal, and the lower loss is better. One epoch is
    kept at a time: when a higher accuracy leaves it behind, the epoch with that accuracy takes its place.
    """
    if found.reconstruction_error is None:
        return (found.accuracy, -found.loss) > (progress.best_accuracy, -progress.best_loss)
    highest = max(progress.highest_accuracy, found.accuracy)
    least = highest - standard_error(highest, found.num_examples)
    if found.accuracy < least:
        return False
    return progress.best_accuracy < least or found.loss < progress.best_loss
