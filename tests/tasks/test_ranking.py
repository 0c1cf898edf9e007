"""How good lists of items are, against the definitions written out."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torchcaps.tasks import Ranking
from torchcaps.tasks.ranking import diversity, ranking_figures
from torchcaps.tasks.task import ModelOutput

LISTS = np.array([[4, 2, 9, 1], [5, 6, 7, 8], [3, 2, 1, 0]])
TARGETS = np.array([[2, 1, 7], [9, 0, 0], [3, 0, 0]])


def test_figures_are_as_defined():
    found = ranking_figures(LISTS, TARGETS, 4)
    np.testing.assert_allclose(found["recall"], [2 / 3, 0, 1])
    np.testing.assert_allclose(found["hit"], [1, 0, 1])
    gain = [1 / math.log2(rank + 1) for rank in (1, 2, 3, 4)]
    np.testing.assert_allclose(found["ndcg"], [(gain[1] + gain[3]) / sum(gain[:3]), 0, 1])
    np.testing.assert_allclose(ranking_figures(LISTS, TARGETS, 1)["recall"], [0, 0, 1])
    # what three wanted items can give at depth 2 are two hits
    np.testing.assert_allclose(ranking_figures(np.array([[2, 1]]), TARGETS[:1], 2)["ndcg"], [1])


def test_coverage_and_diversity():
    categories = np.array([0, 1, 1, 2, 2, 1, 1, 1, 1, 3])
    task = Ranking(10, categories=lambda: categories)
    result = task.score(LISTS, TARGETS)
    assert result["coverage@20"] == 0.9
    # pairs that differ: (2,1,3,1): 5 of 6; (1,1,1,1): none; (2,1,1): 2 of 3
    assert result["diversity@20"] == pytest.approx((5 / 6 + 0 + 2 / 3) / 3)
    assert diversity(np.array([[1, 0]]), categories) == 0.0
    assert "diversity@20" not in Ranking(10).score(LISTS, TARGETS)


def test_loss_in_training_and_in_evaluation():
    options = SimpleNamespace(loss="auto", class_weights=None)
    loss = Ranking(10).make_loss(options, default="")
    scores = torch.tensor([[1.0, 0.0, -torch.inf]])
    torch.testing.assert_close(
        loss(ModelOutput(scores), torch.tensor([[3]]), 0.0), torch.tensor([math.log(1 + math.exp(-1))])
    )
    evaluated = ModelOutput(torch.tensor([[-1.0, -3.0, -9.0]]), ranking=torch.tensor([[1, 2]]))
    torch.testing.assert_close(loss(evaluated, torch.tensor([[4, 5, 0]]), 1.0), torch.tensor([2.0]))
    with pytest.raises(ValueError, match="recommendations have one loss"):
        Ranking(10).make_loss(SimpleNamespace(loss="margin", class_weights=None), default="")


def test_measure_in_training_counts_the_candidates_that_are_better():
    scores = torch.zeros(3, 41)
    scores[0, 0] = 1.0  # the best
    scores[1, 1:20] = 1.0  # 19 are better and 21 as good
    scores[2, 1:5] = 1.0
    scores[2, 0] = 0.5
    found = Ranking(100).measure(ModelOutput(scores), torch.ones(3, 1))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 1 / math.log2(6)]]))


def test_estimate_is_padded_and_refused_in_training():
    estimate = Ranking(5).estimate(ModelOutput(torch.zeros(2, 3), ranking=torch.tensor([[1, 2, 3], [4, 5, 0]])))
    assert estimate.shape == (2, 50)
    assert estimate[1, :4].tolist() == [4, 5, 0, 0]
    with pytest.raises(ValueError, match="call eval"):
        Ranking(5).estimate(ModelOutput(torch.zeros(2, 3)))
    assert Ranking(5).say({"recall@20": 0.25, "ndcg@20": 0.1}) == "recall@20 25.00 %, ndcg@20 10.00 %"
