"""What is asked of a classifier: what its scores mean, what is decided, what is settled and reported."""

import json

import numpy as np
import pytest
import torch

from torchcaps.tasks import OneLabel, SeveralLabels, classification
from torchcaps.tasks.task import ModelOutput
from torchcaps.training import TrainingConfig

SCORES = torch.tensor([[0.2, 0.6, 0.0], [0.0, 0.0, 0.0]])


def test_one_label_gives_probabilities_that_add_up():
    activations = OneLabel(3).estimate(ModelOutput(SCORES))
    torch.testing.assert_close(activations, torch.tensor([[0.25, 0.75, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    logits = OneLabel(3, gives_activations=False).estimate(ModelOutput(SCORES))
    torch.testing.assert_close(logits, SCORES.softmax(-1))


def test_several_labels_are_there_or_not_each_by_itself():
    assert torch.equal(SeveralLabels(3).estimate(ModelOutput(SCORES)), SCORES)
    logits = SeveralLabels(3, gives_activations=False).estimate(ModelOutput(SCORES))
    torch.testing.assert_close(logits, SCORES.sigmoid())


def test_what_is_settled_is_saved_and_restored():
    task = classification(2, multi_label=True)
    task.look_at(np.array([[True, False], [True, True]]))
    estimates, labels = np.array([[0.4, 0.1], [0.3, 0.2]], np.float32), np.array([[True, False], [True, False]])
    settled = task.settle(estimates, labels)
    assert (task.threshold, settled["accuracy"]) == (pytest.approx(0.25), 1.0)
    again = classification(2, multi_label=True)
    again.restore(json.loads(json.dumps(task.to_dict())))
    assert (again.threshold, again.at_least_one) == (task.threshold, True)
    again.restore({})  # of a folder that is older than thresholds
    assert (again.threshold, again.at_least_one) == (0.5, False)


def test_the_surest_mistakes_come_first():
    estimates = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.1, 0.9]])
    report = OneLabel(2).report(estimates, np.array([0, 0, 0, 1]), ["cat", "dog"])
    assert [wrong[:3] for wrong in report.mistakes] == [(2, "cat", "dog"), (1, "cat", "dog")]
    assert report.confusion.tolist() == [[1, 2], [0, 1]]
    several = SeveralLabels(2).report(estimates, np.array([[0, 0], [0, 1], [0, 1], [1, 1]], bool), ["cat", "dog"])
    assert [wrong[:3] for wrong in several.mistakes] == [(0, "nothing", "cat"), (3, "cat + dog", "dog")]


def test_labels_of_the_other_kind_are_refused():
    OneLabel(2).check_labels(np.array([0, 1]), "data")
    with pytest.raises(ValueError, match="trained on one label for each; data has the other kind"):
        OneLabel(2).check_labels(np.zeros((3, 2), bool), "data")
    with pytest.raises(ValueError, match="trained on lists of labels"):
        SeveralLabels(2).check_labels(np.array([0, 1]), "data")


def test_balanced_weights_need_targets_to_count():
    config = TrainingConfig(class_weights="balanced")
    with pytest.raises(ValueError, match="balanced class weights are counted in the targets"):
        OneLabel(2).make_loss(config, default="margin")


def test_answers_have_names():
    assert OneLabel(3).names(np.int64(2), "abc") == ["c"]
    assert SeveralLabels(3).names(np.array([True, False, True]), "abc") == ["a", "c"]
    assert SeveralLabels(3).names(np.array([False, False, False]), "abc") == []
