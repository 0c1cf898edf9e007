"""N-gram capsules and the evidence of words."""

import math

import numpy as np
import torch

from torchcaps.capsules import squash
from torchcaps.nn import NgramCaps, PairEvidence, WordEvidence

# word 2 in three texts of class 0; word 3 in one text of each class; word 4 once, in class 1
TEXTS = [np.array(row) for row in ([2, 2, 3], [2], [2], [3, 4])]
TARGETS = torch.tensor([0, 0, 0, 1])


def counted(num_classes: int = 2, targets: torch.Tensor = TARGETS) -> WordEvidence:
    evidence = WordEvidence(6, num_classes)
    evidence.count(TEXTS, targets)
    return evidence


def log_odds(with_class: int, without: int, class_sum: int = 4, other_sum: int = 2) -> float:
    return math.log((with_class + 1) / (class_sum + 6)) - math.log((without + 1) / (other_sum + 6))


def test_evidence_is_the_log_odds_of_naive_bayes():
    values = counted().eval()(torch.tensor([[2, 3, 4, 5, 0]]))[0]
    expected = [log_odds(3, 0), log_odds(1, 1), log_odds(0, 1), log_odds(0, 0)]
    torch.testing.assert_close(values[:4, 0], torch.tensor(expected))
    torch.testing.assert_close(values[:4, 1], -torch.tensor(expected))
    assert values[4].tolist() == [0, 0]  # padding says nothing


def test_in_training_a_text_does_not_testify_about_itself():
    evidence = counted().train()
    values = evidence(torch.tensor([[2, 2, 3], [3, 4, 0]]), torch.tensor([0, 1]))
    torch.testing.assert_close(values[0, :, 0], torch.tensor([log_odds(2, 0), log_odds(2, 0), log_odds(0, 1)]))
    torch.testing.assert_close(values[1, :2, 0], torch.tensor([log_odds(1, 0), log_odds(0, 0)]))
    torch.testing.assert_close(evidence(torch.tensor([[2]])), evidence.eval()(torch.tensor([[2]]), torch.tensor([0])))


def test_several_classes_at_once():
    targets = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    evidence = counted(2, targets)
    assert evidence.with_class[2].tolist() == [2, 1]
    assert evidence.total[2].tolist() == [3]
    values = evidence.train()(torch.tensor([[2]]), targets[:1])
    assert torch.isfinite(values).all()
    before = evidence.eval()(torch.tensor([[2]]))
    assert (values < before).all()  # without the text, which has both classes, the word speaks less for either


def test_ngram_capsules_see_their_words_alone():
    layer = NgramCaps(5, 7, 3, 4, ngram_size=2).double()
    words = torch.randn(2, 6, 5, dtype=torch.double)
    poses = layer(words).poses
    features = torch.relu(torch.einsum("ock,kc->o", layer.conv.weight, words[1, 3:5]) + layer.conv.bias)
    expected = squash((layer.to_poses.weight @ features + layer.to_poses.bias).view(3, 4))
    torch.testing.assert_close(poses[1, 3], expected)
    assert poses.shape == (2, 5, 3, 4)


def test_pairs_are_counted_like_words():
    """With counters enough for all pairs, the evidence of a pair is that of a word which stands for it."""
    texts, targets = [np.array([2, 3, 4]), np.array([2, 3]), np.array([4, 2])], torch.tensor([0, 1, 1])
    pairs, words = PairEvidence(10_007, 2), WordEvidence(10_007, 2)
    pairs.count(texts, targets)
    numbers = pairs.pairs(torch.tensor([[2, 3, 4], [2, 3, 0], [4, 2, 0]]))
    assert len(numbers.unique()) == 4  # (2, 3), (3, 4), (4, 2) and none
    assert (numbers == 0).tolist() == [[False, False, True], [False, True, True], [False, True, True]]
    words.count([row.numpy() for row in numbers], targets)
    tokens = torch.tensor([[2, 3, 4]])
    torch.testing.assert_close(pairs.eval()(tokens), words.eval()(numbers[:1]))
    torch.testing.assert_close(pairs.train()(tokens, targets[:1]), words.train()(numbers[:1], targets[:1]))
    assert pairs.eval()(tokens)[0, 2].tolist() == [0, 0]
    assert pairs.total[0] == 0  # "no pair" is none
