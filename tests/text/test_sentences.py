"""Texts as sets of capsules: similarity, search and explanation agree with each other."""

import numpy as np
import pytest
import torch

from support.encoders import save_encoder
from torchcaps.models import create_model
from torchcaps.text import CapsuleSentenceEncoder

TEXTS = ["a very good film", "this movie was not bad , it is wonderful fun !", "un", "a sad dog , a cat", "good film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("matching", ["soft", "best"])
@pytest.mark.parametrize("routing", ["kmeans", "em", "vb"])
def test_all_ways_to_compare_agree(routing, matching, folder):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=3, routing=routing, matching=matching)
    sets = encoder.encode(TEXTS)
    assert [len(each.shares) for each in sets] == [3, 3, 1, 3, 2]
    table = encoder.compare_all(sets, sets)
    np.testing.assert_allclose(encoder.similarity(TEXTS, TEXTS[::-1]), np.diag(table[:, ::-1]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(table, table.T, rtol=0.05, atol=0.02)  # as far as the scaling has come
    assert encoder.similarity(TEXTS[0], TEXTS[1]) == pytest.approx(table[0, 1], abs=2e-3)
    matches = encoder.explain(TEXTS[0], TEXTS[1])
    matched = sum(match.share * match.similarity for match in matches)
    assert 0.5 * matched + 0.5 * sets[0].whole @ sets[1].whole == pytest.approx(table[0, 1], abs=0.05)
    words = [word for part in dict.fromkeys(match.first for match in matches) for word in part.words]
    assert sorted(words) == sorted(TEXTS[0].split())


def test_search_finds_what_is_most_alike(folder):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=2, width=0.01)
    found = encoder.search(TEXTS[3], TEXTS, k=2)
    assert found[0].text == TEXTS[3]
    assert found[0].place == 3
    assert found[0].similarity >= found[1].similarity
    assert found[0].matches[0].second.words
    again = encoder.search(TEXTS[3], encoder.encode(TEXTS), k=2)
    assert [each.place for each in again] == [each.place for each in found]
    assert encoder.search("a", [], k=3) == []


def test_one_capsule_is_the_cosine_of_means(folder):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=1)
    means = [encoder.words(encoder.inputs([text]))[0][0].mean(0).numpy() for text in TEXTS[:2]]
    cosine = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    assert encoder.similarity(*TEXTS[:2]) == pytest.approx(cosine, abs=1e-4)
    assert encoder.similarity(TEXTS[0], TEXTS[0]) == pytest.approx(1, abs=1e-4)


def test_longer_texts_have_more_capsules_where_that_is_asked_for(folder):
    encoder = CapsuleSentenceEncoder(folder, num_capsules=3, tokens_of_capsule=4)
    assert [len(each.shares) for each in encoder.encode(TEXTS)] == [1, 3, 1, 2, 1]


def test_wrong_questions_are_told(folder):
    encoder = CapsuleSentenceEncoder(folder)
    with pytest.raises(TypeError, match="got one of each"):
        encoder.similarity("a", ["b"])
    with pytest.raises(ValueError, match="got 1 and 2"):
        encoder.similarity(["a"], ["b", "c"])
    with pytest.raises(TypeError, match="got both"):
        encoder.search("a", ["a", encoder.encode(["b"])[0]])
    for wrong in ({"routing": "none"}, {"matching": "none"}, {"width": 0.0}, {"whole": 2.0}, {"num_capsules": 0}):
        with pytest.raises(ValueError, match="must be"):
            CapsuleSentenceEncoder(folder, **wrong)


def test_a_model_lends_its_encoder_fine_tuned_or_not(folder):
    tuned = create_model("text-capsules", encoder=folder, num_classes=2, fine_tune=True).eval()
    frozen = create_model("text-capsules", encoder=folder, num_classes=2)
    expected = CapsuleSentenceEncoder(folder).similarity(*TEXTS[:2])
    assert CapsuleSentenceEncoder(frozen).similarity(*TEXTS[:2]) == pytest.approx(expected, abs=1e-6)
    assert CapsuleSentenceEncoder(tuned).similarity(*TEXTS[:2]) == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():
        next(tuned.encoder.parameters()).mul_(-1)
    assert CapsuleSentenceEncoder(tuned).similarity(*TEXTS[:2]) != pytest.approx(expected, abs=1e-3)
    assert CapsuleSentenceEncoder(frozen, keep=True).keep
    with pytest.raises(ValueError, match="this model has one of its own"):
        CapsuleSentenceEncoder(tuned, keep=True)
