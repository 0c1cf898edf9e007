"""What comes next for a person: items in order, and how many of those that were taken are among the first."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.tasks.task import Loss, LossOptions, ModelOutput, ReadTargets, Task

NO_ITEM = 0  # the number that stands for nothing
DEPTHS = (20, 50)  # how many recommendations are looked at

Categories = Callable[[], np.ndarray | None]


class Ranking(Task):
    r"""Which items a person takes next; targets are their numbers from 1 on, (B, M) int64, 0 where there are fewer.

    With h hits among the first N recommendations and m items that were taken: recall is h / m, the hit rate whether
    h > 0, and NDCG is :math:`\sum_{hits} 1 / \log_2(rank + 1)` over its value if the first min(m, N) were hits (not the
    first h, which would call one hit at rank 1 perfect).

    Args:
        num_items: how many there are.
        categories: gives the category of each item, (num_items + 1,), or None where there is none.

    Example:
        >>> task = Ranking(9)
        >>> found = task.score(np.array([[3, 1, 2]]), np.array([[1, 7]]))
        >>> found["recall@20"], found["hit rate@20"], round(found["coverage@20"], 2)
        (0.5, 1.0, 0.33)
    """

    figures = ("recall@20", "ndcg@20")
    estimate_type = np.int64
    multi_label: ClassVar[bool] = False
    threshold: ClassVar[float] = 0.0
    at_least_one: ClassVar[bool] = False

    def __init__(self, num_items: int, *, categories: Categories = lambda: None) -> None:
        self.num_items, self.categories = num_items, categories
        self.estimate_shape = (max(DEPTHS),)

    def make_loss(self, options: LossOptions, *, default: str, read_targets: ReadTargets | None = None) -> Loss:
        """-log of the probability of what was taken: among candidates in training, among all items in evaluation."""
        if options.loss != "auto" or options.class_weights is not None:
            raise ValueError("recommendations have one loss, the sampled softmax; leave out loss and class_weights")

        def loss(output: ModelOutput, targets: Tensor, progress: float) -> Tensor:
            scores = output.scores.float()
            if output.ranking is None:  # candidates, of which the first was taken
                return functional.cross_entropy(
                    scores, scores.new_zeros(len(scores), dtype=torch.int64), reduction="none"
                )
            is_asked = targets != NO_ITEM
            return -torch.where(is_asked, scores, 0.0).sum(1) / is_asked.sum(1).clamp_min(1)

        return loss

    def classes(self, targets: Tensor) -> Tensor:
        """What was taken."""
        return targets

    def measure(self, output: ModelOutput, targets: Tensor) -> Tensor:
        """Recall and NDCG of each person; in training among the candidates of the loss."""
        if output.ranking is not None:
            found = ranking_figures(output.ranking.cpu().numpy(), targets.cpu().numpy(), DEPTHS[0])
            return torch.from_numpy(np.stack([found["recall"], found["ndcg"]])).to(targets.device)
        rank = (output.scores[:, 1:] >= output.scores[:, :1]).sum(1)
        is_hit = rank < DEPTHS[0]
        return torch.stack([is_hit.float(), torch.where(is_hit, 1 / (rank + 2).log2(), 0.0)])

    def estimate(self, output: ModelOutput) -> Tensor:
        """The best items, (B, 50), 0 where there are fewer."""
        if output.ranking is None:
            raise ValueError("a model in training compares candidates; call eval() to ask it for recommendations")
        ranking = output.ranking[:, : self.estimate_shape[0]]
        return functional.pad(ranking, (0, self.estimate_shape[0] - ranking.shape[1]), value=NO_ITEM)

    def score(self, answers: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Recall, NDCG and hit rate, the share of items that anybody is recommended, and how different they are."""
        result, categories = {}, self.categories()
        for depth in DEPTHS:
            found = ranking_figures(answers, targets, depth)
            named = {"recall": "recall", "ndcg": "ndcg", "hit": "hit rate"}
            result |= {f"{name}@{depth}": float(found[key].mean()) for key, name in named.items()}
            shown = np.unique(answers[:, :depth])
            result[f"coverage@{depth}"] = float((shown != NO_ITEM).sum() / self.num_items)
            if categories is not None:
                result[f"diversity@{depth}"] = diversity(answers[:, :depth], categories)
        return result

    def say(self, figures: Mapping[str, float]) -> str:
        """In per cent."""
        return ", ".join(f"{name} {100 * figures[name]:.2f} %" for name in self.figures if name in figures)


def ranking_figures(ranking: np.ndarray, targets: np.ndarray, depth: int) -> dict[str, np.ndarray]:
    """Recall, NDCG and hit of each person, at a depth.

    Shapes:
        ranking: (n, at least 1), targets: (n, M), 0 for nothing -> each (n,)
    """
    ranking = ranking[:, :depth]
    hits = ((ranking[:, :, None] == targets[:, None, :]) & (targets != NO_ITEM)[:, None, :]).any(2)
    num_wanted = (targets != NO_ITEM).sum(1)
    gains = 1 / np.log2(np.arange(depth) + 2)
    ideal = np.concatenate([[0.0], np.cumsum(gains)])[np.minimum(num_wanted, depth)]
    return {
        "recall": hits.sum(1) / np.maximum(num_wanted, 1),
        "ndcg": (hits * gains[: hits.shape[1]]).sum(1) / np.maximum(ideal, 1e-12),
        "hit": hits.any(1).astype(np.float64),
    }


def diversity(ranking: np.ndarray, categories: np.ndarray) -> float:
    """The share of pairs of a person's recommendations whose categories differ, on average over people."""
    shares = []
    for row in ranking:
        found = categories[row[row != NO_ITEM]]
        num_pairs = len(found) * (len(found) - 1) / 2
        counts = np.unique(found, return_counts=True)[1]
        shares.append(1 - (counts * (counts - 1) / 2).sum() / num_pairs if num_pairs else 0.0)
    return float(np.mean(shares))
