"""What is measured, against scikit-learn and loops."""

import pytest
import torch
from sklearn import metrics

from torchcaps.tasks import OneLabel, SeveralLabels
from torchcaps.tasks.measures import choose_threshold, confusion_matrix, multi_label_scores
from torchcaps.tasks.task import ModelOutput


def loop(found, truth):
    counts = torch.zeros(found.shape[1], found.shape[1], dtype=torch.long)
    for found_J, truth_J in zip(found.tolist(), truth.tolist(), strict=True):
        for true in range(len(truth_J)):
            for other in range(len(found_J)):
                if true == other:
                    counts[true, true] += truth_J[true] and found_J[true]
                elif truth_J[true] and not found_J[true] and found_J[other] and not truth_J[other]:
                    counts[true, other] += 1
    return counts


def test_missed_classes_count_for_those_found_in_their_place():
    generator = torch.Generator().manual_seed(0)
    found, truth = (torch.rand(200, 5, generator=generator) < 0.4 for _ in range(2))
    assert torch.equal(confusion_matrix(found, truth), loop(found, truth))


def test_one_class_each_gives_the_plain_counts():
    found, truth = torch.tensor([0, 2, 2, 1]), torch.tensor([0, 1, 2, 1])
    counts = confusion_matrix(torch.eye(3).bool()[found], torch.eye(3).bool()[truth])
    assert counts.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]


def test_several_labels_as_scikit_learn_counts_them():
    generator = torch.Generator().manual_seed(0)
    found, truth = (torch.rand(200, 5, generator=generator) < share for share in (0.3, 0.4))
    found[:9], truth[:9], truth[9:15] = False, False, False  # nothing found where nothing is, or something is
    arrays = {"y_true": truth.numpy(), "y_pred": found.numpy()}
    expected = {"exact_match": metrics.accuracy_score(**arrays)}
    for average, empty in (("micro", 0.0), ("samples", 1.0)):
        measures = {"precision": metrics.precision_score, "recall": metrics.recall_score, "f1": metrics.f1_score}
        for name, measure in measures.items():
            whole = measure(**arrays, average=average, zero_division=0.0)
            if average == "samples":  # ours: right only where both are empty
                both = float((~truth.any(1) & ~found.any(1)).double().mean())
                whole += empty * both
            expected[f"{'micro' if average == 'micro' else 'sample'}_{name}"] = whole
    assert multi_label_scores(found, truth) == pytest.approx(expected)


def test_an_answer_is_right_when_all_its_labels_are():
    probabilities = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.2, 0.1], [0.5, 0.5, 0.0]])
    targets = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    output = ModelOutput(probabilities)
    assert SeveralLabels(3).measure(output, targets).tolist() == [[True, False, True]]
    assert OneLabel(3).measure(output, torch.tensor([0, 1, 0])).tolist() == [[True, False, True]]


def test_the_threshold_has_the_best_micro_f1():
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(60, 4, generator=generator) < 0.3
    probabilities = (0.4 * truth + 0.6 * torch.rand(60, 4, generator=generator)).mul(20).round() / 20  # with ties

    def f1(threshold: float) -> float:
        return multi_label_scores(probabilities >= threshold, truth)["micro_f1"]

    chosen = choose_threshold(probabilities, truth)
    assert f1(chosen) == max(f1(value) for value in probabilities.unique().tolist())
    assert f1(chosen) > f1(0.3)
