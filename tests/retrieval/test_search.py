"""Searching all items a part at a time, in an index, and merging with a prize for other categories."""

import numpy as np
import pytest
import torch

from torchcaps.models import create_model
from torchcaps.retrieval import ItemIndex, merge_diverse, search


def make(num_people=3, num_interests=2, num_items=37, size=4):
    torch.manual_seed(0)
    interests, vectors = torch.randn(num_people, num_interests, size), torch.randn(num_items + 1, size)
    present = torch.tensor([[True, True], [True, False], [True, True]])
    used = torch.tensor([[3, 5, 0], [37, 1, 2], [0, 0, 0]])
    return interests, vectors, present, used


def by_loop(interests, vectors, present, used, k):
    """(item, score, interest) of each person, the best first."""
    people = []
    for person in range(len(interests)):
        found = []
        for item in range(1, len(vectors)):
            scores = [
                float(interests[person, j] @ vectors[item]) if present[person, j] else -np.inf
                for j in range(interests.shape[1])
            ]
            if item not in used[person].tolist():
                found.append((item, max(scores), int(np.argmax(scores))))
        people.append(sorted(found, key=lambda each: -each[1])[:k])
    return people


@pytest.mark.parametrize("part", [2**20, 7, 60])
@pytest.mark.parametrize("k", [1, 5, 36])
def test_search_finds_what_a_loop_finds(part, k):
    interests, vectors, present, used = make()
    found = search(interests, vectors, k, present=present, leave_out=used, part=part)
    for person, expected in enumerate(by_loop(interests, vectors, present, used, k)):
        assert found.items[person, : len(expected)].tolist() == [item for item, _, _ in expected]
        assert found.interests[person, : len(expected)].tolist() == [interest for _, _, interest in expected]
        torch.testing.assert_close(found.scores[person, : len(expected)], torch.tensor([s for _, s, _ in expected]))
        assert not found.items[person, len(expected) :].any()  # there are no more
    everything = by_loop(interests, vectors, present, used, 37)
    sums = torch.tensor([[s for _, s, _ in each] + [-np.inf] * (37 - len(each)) for each in everything]).logsumexp(1)
    torch.testing.assert_close(found.log_sums, sums)


def test_an_index_finds_nearly_the_same():
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    model = create_model("comirec-sa", num_classes=500, item_size=8).eval()
    histories = torch.randint(1, 501, (20, 6))
    interests, present = (value.detach() for value in model.interests(histories))
    exact = model.find(interests, present, histories, 10)
    found = ItemIndex(model).search(interests, 10, present=present, leave_out=histories)
    assert not (found.items.unsqueeze(2) == histories.unsqueeze(1)).any()
    same = (found.items.unsqueeze(2) == exact.items.unsqueeze(1)).any(2).float().mean()
    assert same > 0.95
    torch.testing.assert_close(found.scores[:, 0], exact.scores[:, 0].detach())
    assert (found.interests[:, 0] == exact.interests[:, 0]).float().mean() > 0.9


def test_diverse_merging_chooses_as_the_sum_over_pairs_says():
    draws = np.random.default_rng(0)
    scores, categories = np.sort(draws.normal(size=12))[::-1], draws.integers(0, 3, 12)
    assert merge_diverse(scores, categories, 5, diversity=0.0).tolist() == [0, 1, 2, 3, 4]
    chosen: list[int] = []
    for _ in range(5):  # the rule, written out
        rest = [place for place in range(12) if place not in chosen]
        value = [scores[p] + 0.7 * sum(categories[p] != categories[q] for q in chosen) for p in rest]
        chosen.append(rest[int(np.argmax(value))])
    assert merge_diverse(scores, categories, 5, diversity=0.7).tolist() == chosen
    assert len(set(categories[merge_diverse(scores, categories, 3, diversity=100.0)])) == 3
    assert len(merge_diverse(scores[:2], categories[:2], 5, diversity=1.0)) == 2
    with pytest.raises(ValueError, match="diversity must be 0 or more, got -1"):
        merge_diverse(scores, categories, 5, diversity=-1)
