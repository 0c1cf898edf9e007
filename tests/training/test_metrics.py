"""The confusion matrix against a loop."""

import torch

from torchcaps.training.metrics import confusion_matrix


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
