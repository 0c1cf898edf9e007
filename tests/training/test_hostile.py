"""Hostile settings end finite or with a diagnosis; the whole table is made by tools/hostile_training.py."""

import pytest
from hostile_training import SETTINGS, train

DIVERGES = "SGD, learning rate 1e6, no clipping"


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        ("capsnet-small", "learning rate x 1000, no clipping"),
        ("matrix-capsnet-small", "inputs without variance, learning rate x 1000"),
        ("matrix-capsnet-small", "bf16, learning rate x 1000"),
        ("capsnet-shared", "one example"),
        ("no-routing", "batch size 1"),
        ("cnn-small", "a class is missing, balanced weights"),
        ("text-capsule-a", "extreme inputs"),
        ("text-bilstm", "several labels or none"),
        ("text-bilstm", "bf16"),
    ],
)
def test_it_stays_finite(model, setting):
    outcome, message = train(model, SETTINGS[setting])
    assert outcome == "finite", message


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "entropy", "em", "uniform"])
def test_every_routing_stays_finite(routing):
    outcome, message = train("matrix-capsnet-small", SETTINGS["learning rate x 1000"], routing)
    assert outcome == "finite", message


@pytest.mark.parametrize(
    ("model", "setting", "sentence"),
    [
        ("cnn-baseline", DIVERGES, "what network."),
        ("text-cnn", "NaN in the inputs", "what embedding gives is not finite at step"),
    ],
)
def test_it_ends_with_a_diagnosis(model, setting, sentence):
    outcome, message = train(model, SETTINGS[setting])
    assert outcome == "diagnosed", message
    assert message.startswith(sentence)


def test_images_that_are_none_are_refused():
    for setting in ("NaN in the inputs", "inputs of 1e30"):
        outcome, message = train("cnn-small", SETTINGS[setting])
        assert (outcome, "between 0 and 1" in message) == ("refused", True)
