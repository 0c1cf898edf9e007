"""What all recommenders have in common: a table of items, people as interests, and how the two are compared."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.checks import check_count
from torchcaps.inputs.histories import HistoryEncoding
from torchcaps.inputs.source import Source
from torchcaps.losses import sampled_logits
from torchcaps.models.base import Model, ModelOutput
from torchcaps.models.search import Found, search
from torchcaps.nn import label_aware_attention
from torchcaps.tasks import Ranking
from torchcaps.tasks.ranking import DEPTHS, NO_ITEM

SAMPLING_POWER = 0.75  # negatives are drawn by the power of how often items are used: rare ones are seen, too
START_SCALE = 8.0  # of scores: interests and items start about as long as 1


class Recommender(Model):
    r"""People as one or several interests, which are compared with items: the score of an item is its best interest's.

    In training the interest that fits the item that was taken is compared with it and with sampled items, whose scores
    are corrected by how often they are drawn; see `torchcaps.losses.sampled_logits`.

    Args:
        num_classes: items; they are numbered from 1 on.
        item_size: entries of the vector of an item.
        max_length: items of a person that are read, the latest.
        num_negatives: items that are drawn for each batch; 0 compares with all items.
        power: of label-aware attention, see `torchcaps.nn.label_aware_attention`; None for the best interest alone.
        num_features: values of features, such as "genre=comedy", over all items.
        features_per_item: that an item has at most.
        multi_label: always False.
        **options: see Model.

    Shapes:
        histories: (B, T) int64, numbers of items from the first to the latest; 0 is padding, anywhere
    """

    kind = HistoryEncoding.kind
    pipeline = "other"
    preprocessing_class = HistoryEncoding
    default_loss = "sampled softmax"
    gives_activations = False
    num_interests: int = 1

    counts: Tensor
    features: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        multi_label: bool = False,
        item_size: int = 32,
        max_length: int = 20,
        num_negatives: int = 256,
        power: float | None = None,
        num_features: int = 0,
        features_per_item: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            multi_label=False,
            item_size=item_size,
            max_length=max_length,
            num_negatives=num_negatives,
            power=power,
            num_features=num_features,
            features_per_item=features_per_item,
            **options,
        )
        if multi_label:
            raise ValueError("a recommender ranks items and has no labels; leave out multi_label")
        self.item_size, self.max_length = check_count("item_size", item_size), check_count("max_length", max_length)
        self.num_negatives = check_count("num_negatives", num_negatives, least=0)
        self.power = math.inf if power is None else power
        self.num_features = check_count("num_features", num_features, least=0)
        names = tuple(str(number) for number in range(1, num_classes + 1))
        self.preprocessing = HistoryEncoding(items=names, max_length=max_length)
        self.task = Ranking(num_classes, categories=self.categories)
        self.items = nn.Embedding(num_classes + 1, item_size, padding_idx=NO_ITEM)
        self.feature_values = None
        if num_features:
            self.feature_values = nn.Embedding(num_features + 1, item_size, padding_idx=0)
        self.log_scale = nn.Parameter(torch.tensor(math.log(START_SCALE)))
        self.register_buffer("counts", torch.zeros(num_classes + 1))
        self.register_buffer("features", torch.zeros(num_classes + 1, features_per_item, dtype=torch.int64))
        self._start_tables()

    @torch.no_grad()
    def _start_tables(self) -> None:
        for table in (self.items, self.feature_values):
            if table is not None:
                nn.init.normal_(table.weight, std=self.item_size**-0.5)
                table.weight[0] = 0

    # What a model of one's own implements.

    def interests(self, histories: Tensor) -> tuple[Tensor, Tensor]:
        """The interests of people (B, J, item_size), and which are there (B, J)."""
        capsules = self.route(histories)["interests"].capsules
        return capsules.poses, self.present(histories)

    def present(self, histories: Tensor) -> Tensor:
        """Which interests people have: all, unless there is nothing to tell them from."""
        return (histories != NO_ITEM).any(1, keepdim=True).expand(-1, self.num_interests)

    # What is made of it.

    def forward(self, histories: Tensor, classes: Tensor | None = None) -> ModelOutput:
        """Rank all items but those of the histories; in training compare what was taken, `classes`, with others."""
        histories = self.check(histories)
        interests_BJD, present_BJ = self.interests(histories)
        interests_BJD = self.log_scale.exp() * interests_BJD
        if self.training and classes is not None:
            return ModelOutput(self.candidate_scores(interests_BJD, present_BJ, classes[:, 0]), interests_BJD)
        vectors = self.item_vectors()
        found = self.find(interests_BJD, present_BJ, histories, max(DEPTHS), vectors=vectors)
        if classes is None:
            return ModelOutput(found.scores, interests_BJD, ranking=found.items)
        scores_BJM = interests_BJD @ vectors[classes].transpose(1, 2)
        scores_BM = scores_BJM.masked_fill(~present_BJ.unsqueeze(-1), torch.finfo(scores_BJM.dtype).min).amax(1)
        return ModelOutput(scores_BM - found.log_sums.unsqueeze(1), interests_BJD, ranking=found.items)

    def check(self, histories: Tensor) -> Tensor:
        """Histories with at least one place."""
        if histories.dim() != 2 or histories.dtype != torch.int64:
            raise ValueError(
                f"histories must be int64 of shape (B, T), got {histories.dtype} of shape {tuple(histories.shape)}"
            )
        return histories if histories.shape[1] else nn.functional.pad(histories, (0, 1))

    def find(
        self, interests: Tensor, present: Tensor, histories: Tensor | None, k: int, *, vectors: Tensor | None = None
    ) -> Found:
        """The k best items of each person without those of the histories, by looking at all."""
        vectors = self.item_vectors() if vectors is None else vectors
        return search(interests, vectors, min(k, self.num_classes), present=present, leave_out=histories)

    def item_vectors(self, numbers: Tensor | None = None) -> Tensor:
        """Vectors of items, each its own and the mean of its features': (..., item_size); of all without numbers."""
        vectors = self.items.weight if numbers is None else self.items(numbers)
        if self.feature_values is None:
            return vectors
        # Where there are fewer items than places each is made once; a compiled graph must not depend on the batch.
        if numbers is not None and not torch.compiler.is_compiling() and numbers.numel() > len(self.features):
            return self.item_vectors()[numbers]
        features = self.features if numbers is None else self.features[numbers]
        count = (features != 0).sum(-1, keepdim=True).clamp_min(1)
        return vectors + self.feature_values(features).sum(-2) / count

    def candidate_scores(self, interests: Tensor, present: Tensor, taken: Tensor) -> Tensor:
        """Logits of what was taken, and of sampled items: (B, 1 + n)."""
        taken_BD = self.item_vectors(taken)
        person_BD = label_aware_attention(interests, taken_BD, power=self.power, present=present)
        true_B = (person_BD * taken_BD).sum(-1)
        if self.num_negatives == 0:
            others = torch.arange(1, self.num_classes + 1, device=taken.device)
            scores_BN = person_BD @ self.item_vectors(others).T
            scores_BN = scores_BN.masked_fill(others == taken.unsqueeze(1), -torch.inf)
            return torch.cat([true_B.unsqueeze(1), scores_BN], 1)
        chances = (self.counts[1:] + 1).double().pow(SAMPLING_POWER)
        log_q = (chances / chances.sum()).log().float()
        draws = torch.rand(self.num_negatives, dtype=torch.float64, device=taken.device)
        others = torch.searchsorted(chances.cumsum(0), draws * chances.sum()).clamp_max(self.num_classes - 1) + 1
        return sampled_logits(
            true_B,
            person_BD @ self.item_vectors(others).T,
            log_q[taken - 1],
            log_q[others - 1],
            others == taken.unsqueeze(1),
        )

    @torch.no_grad()
    def before_training(self, source: Source) -> None:
        """Count how often items are taken."""
        targets = source.targets()
        self.counts.copy_(torch.from_numpy(np.bincount(targets[targets > 0], minlength=self.num_classes + 1)))

    @torch.no_grad()
    def set_features(self, features: list[list[int]]) -> None:
        """Give the items, from item 1 on, the numbers of their features, from 1 on."""
        for number, own in enumerate(features, 1):
            self.features[number, : len(own)] = torch.tensor(own, dtype=torch.int64)

    def categories(self) -> np.ndarray | None:
        """The first feature of each item, (items + 1,); None where items have none."""
        return self.features[:, 0].cpu().numpy() if self.features.shape[1] else None

    def describe(self) -> tuple[str, str]:
        return "what people used", 'torchcaps.retrieval.recommend(predictor.model, [["an item", "another"]])'

    def answers(self) -> str:
        return f"recommendations among {self.num_classes:,} items"


class OneInterest(Recommender):
    """A person is one vector."""

    def person(self, histories: Tensor) -> Tensor:
        """(B, T) -> (B, item_size)."""
        raise NotImplementedError

    def interests(self, histories: Tensor) -> tuple[Tensor, Tensor]:
        return self.person(histories).unsqueeze(1), self.present(histories)
