"""Which class is it, or which classes are there: the first two tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.losses import activation_cross_entropy, margin_loss, softmax_cross_entropy, spread_loss
from torchcaps.schedules import spread_margin
from torchcaps.tasks.measures import choose_threshold, confusion_matrix, multi_label_scores, standard_error
from torchcaps.tasks.task import Loss, LossOptions, Mistake, ModelOutput, ReadTargets, Report, Task
from torchcaps.tasks.weights import class_weights, example_weights

UNSETTLED = 0.5  # the probability from which a class counts as there while nothing better is known


def classification(num_classes: int, *, multi_label: bool = False, gives_activations: bool = True) -> "Classification":
    """The task of a classifier: one label for each example, or several and perhaps none."""
    return (SeveralLabels if multi_label else OneLabel)(num_classes, gives_activations=gives_activations)


class Classification(Task):
    """What both kinds of classification share.

    Args:
        num_classes: J.
        gives_activations: whether scores are activations in [0, 1]; otherwise they are logits.

    Attributes:
        multi_label: whether several classes may be true at once.
        threshold: probability from which one of several classes is taken to be there.
        at_least_one: whether the most probable of them is there in any case, as befits data without empty examples.
    """

    figures = ("accuracy",)
    multi_label: ClassVar[bool]

    def __init__(self, num_classes: int, *, gives_activations: bool = True) -> None:
        self.num_classes, self.gives_activations = num_classes, gives_activations
        self.estimate_shape = (num_classes,)
        self.threshold, self.at_least_one = UNSETTLED, False

    def make_loss(self, options: LossOptions, *, default: str, read_targets: ReadTargets | None = None) -> Loss:
        """The loss that is asked for, the examples of each class weighted as told."""
        name = default if options.loss == "auto" else options.loss
        self.check_loss(name)
        if not self.gives_activations and name != "cross_entropy":
            raise ValueError(f"the model gives logits and trains with cross_entropy, not with {name}")
        weights = class_weights(options.class_weights, read_targets, self.num_classes)
        start, end = options.spread_margin
        balanced = options.balance_classes

        def loss(output: ModelOutput, targets: Tensor, progress: float) -> Tensor:
            scores = output.scores.to(torch.promote_types(output.scores.dtype, torch.float32))
            if name == "margin":
                found = margin_loss(scores, targets, balanced=balanced, reduction="none")
            elif name == "spread":
                margin = spread_margin(progress, 1.0, start=start, end=end)
                found = spread_loss(scores, targets, margin, balanced=balanced, reduction="none")
            elif name == "softmax_cross_entropy":
                found = softmax_cross_entropy(scores, targets, reduction="none")
            else:
                found = self.cross_entropy(scores, targets)
            return found if weights is None else found * example_weights(weights.to(found.device), targets)

        return loss

    def check_loss(self, name: str) -> None:
        """Raise if the loss does not fit the labels."""

    def cross_entropy(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Of each example, from activations or logits: (B,)."""
        raise NotImplementedError

    def classes(self, targets: Tensor) -> Tensor:
        """The targets are the classes."""
        return targets

    def flags(self, labels: np.ndarray) -> np.ndarray:
        """Answers or labels as bool (n, J)."""
        raise NotImplementedError

    def names(self, answer: Any, labels: Sequence[str]) -> list[str]:
        """The names of the classes in one answer."""
        return [labels[index] for index in np.flatnonzero(self.flags(np.asarray(answer)[None])[0]).tolist()]

    def check_labels(self, labels: np.ndarray, source: str) -> None:
        """Raise if data have labels of the other kind."""
        if (labels.ndim == 2) != self.multi_label:
            kinds = "lists of labels" if self.multi_label else "one label for each"
            raise ValueError(f"the model was trained on {kinds}; {source} has the other kind")

    def report(self, estimates: np.ndarray, targets: np.ndarray, names: Sequence[str]) -> Report:
        """Which classes are taken for which, and all mistakes, those first of which the model was most sure."""
        truth, found = self.flags(targets), self.flags(self.decide(estimates))
        confidence = np.where(found & ~truth, estimates, 0).max(1)
        wrong = np.flatnonzero((found != truth).any(1))
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]

        def listed(flags: np.ndarray) -> str:
            return " + ".join(names[index] for index in np.flatnonzero(flags).tolist()) or "nothing"

        mistakes = [Mistake(int(i), listed(truth[i]), listed(found[i]), float(confidence[i])) for i in wrong]
        return Report(confusion_matrix(torch.from_numpy(found), torch.from_numpy(truth)).numpy(), mistakes)

    def say(self, figures: Mapping[str, float]) -> str:
        """The accuracy in per cent."""
        return f"accuracy {figures['accuracy']:.2%}"

    def chance(self, quality: float, num_examples: int) -> float:
        """One standard error of an accuracy, binomial."""
        return standard_error(quality, num_examples)

    def to_dict(self) -> dict[str, Any]:
        """From where on classes are there."""
        return {"threshold": self.threshold, "at_least_one": self.at_least_one}

    def restore(self, settled: Mapping[str, Any]) -> None:
        """Take back what `to_dict` gave."""
        self.threshold = float(settled.get("threshold", UNSETTLED))
        self.at_least_one = bool(settled.get("at_least_one", False))


class OneLabel(Classification):
    """Each example has one class; targets are its number, (B,) int64.

    Example:
        >>> OneLabel(3).decide(np.array([[0.2, 0.7, 0.1]])).tolist()
        [1]
    """

    multi_label = False

    def cross_entropy(self, scores: Tensor, targets: Tensor) -> Tensor:
        """-log of the probability of the true class."""
        if self.gives_activations:
            return activation_cross_entropy(scores, targets, reduction="none")
        return functional.cross_entropy(scores, targets, reduction="none")

    def estimate(self, output: ModelOutput) -> Tensor:
        """The probability of each class, (B, J); they add up to 1."""
        if not self.gives_activations:
            return output.scores.softmax(-1)
        total = output.scores.sum(-1, keepdim=True)
        return torch.where(total > 0, output.scores / total.clamp_min(1e-30), 1 / self.num_classes)

    def decide(self, estimates: np.ndarray) -> np.ndarray:
        """The most probable class: (n,)."""
        return estimates.argmax(-1)

    def measure(self, output: ModelOutput, targets: Tensor) -> Tensor:
        """Whether the most probable class is the true one."""
        return (self.estimate(output).argmax(-1) == targets).unsqueeze(0)

    def score(self, answers: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The accuracy."""
        return {"accuracy": float((answers == targets).mean())}

    def flags(self, labels: np.ndarray) -> np.ndarray:
        """Numbers of classes as bool (n, J)."""
        return labels[:, None] == np.arange(self.num_classes)


class SeveralLabels(Classification):
    """An example may have several classes or none; targets say which are there, (B, J) bool.

    Example:
        >>> task = SeveralLabels(3)
        >>> task.decide(np.array([[0.2, 0.7, 0.6], [0.1, 0.1, 0.3]])).tolist()
        [[False, True, True], [False, False, False]]
        >>> task.at_least_one = True
        >>> task.decide(np.array([[0.1, 0.1, 0.3]])).tolist()
        [[False, False, True]]
    """

    multi_label = True
    leaves_open = True

    def check_loss(self, name: str) -> None:
        if name in ("spread", "softmax_cross_entropy"):
            raise ValueError(
                f"the loss {name} has one true class per example; train multi-label models with loss='margin'"
            )

    def cross_entropy(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The sum over the classes, each there or not."""
        logits = scores.clamp(1e-6, 1 - 1e-6).logit() if self.gives_activations else scores
        losses = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return losses.sum(-1)

    def estimate(self, output: ModelOutput) -> Tensor:
        """The probability that each class is there: (B, J)."""
        return output.scores if self.gives_activations else output.scores.sigmoid()

    def decide(self, estimates: np.ndarray) -> np.ndarray:
        """Which classes are there, bool (n, J): those from the threshold on, and perhaps the most probable anyway."""
        there = estimates >= self.threshold
        if self.at_least_one:
            np.put_along_axis(there, estimates.argmax(-1)[:, None], True, axis=-1)
        return there

    def measure(self, output: ModelOutput, targets: Tensor) -> Tensor:
        """Whether all labels are right; the threshold is chosen when training has ended."""
        return ((self.estimate(output) >= UNSETTLED) == targets.bool()).all(-1).unsqueeze(0)

    def look_at(self, targets: np.ndarray) -> None:
        """Whether every example has a class."""
        self.at_least_one = bool(targets.any(1).all())

    def settle(self, estimates: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """The threshold with the highest F1 over all labels, and the accuracy with it."""
        self.threshold = choose_threshold(torch.from_numpy(estimates), torch.from_numpy(targets))
        return {"threshold": self.threshold, "accuracy": self.score(self.decide(estimates), targets)["accuracy"]}

    def score(self, answers: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Exact matches as accuracy, and precision, recall and F1 beside it."""
        found = multi_label_scores(torch.from_numpy(answers), torch.from_numpy(targets))
        return {"accuracy": found["exact_match"]} | found

    def flags(self, labels: np.ndarray) -> np.ndarray:
        """The labels are such flags."""
        return labels
