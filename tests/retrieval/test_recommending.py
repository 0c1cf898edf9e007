"""Recommendations for people: used items are left out, interests are explained, an estimator needs a table alone."""

import numpy as np
import pytest
import torch

from torchcaps.data.interactions import InteractionOptions, generate_people
from torchcaps.models import create_model
from torchcaps.retrieval import InterestRecommender, explain_interests, interest_recovery, interests_of, recommend
from torchcaps.training import TrainingConfig
from torchcaps.training.recommend import new_recommender

SHORT = TrainingConfig(epochs=2, batch_size=64, learning_rate=2e-2)


@pytest.fixture(scope="module")
def people():
    return generate_people(120, num_items=40, num_groups=5)


@pytest.fixture(scope="module")
def model(people):
    torch.manual_seed(0)
    return new_recommender("mind", people.interactions, item_size=8, dynamic=False).eval()


def test_lists_are_what_the_search_finds_for_everybody_alone(model):
    histories = [["item-3", "item-8", "item-9"], ["item-1"], ["item-5", "item-6"]]
    together = recommend(model, histories, k=7)
    for history, found in zip(histories, together):
        alone = recommend(model, [history], k=7)[0]
        assert [each.item for each in alone] == [each.item for each in found]
        assert not set(history) & {each.item for each in found}
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    numbers = model.preprocessing([histories[0]])
    interests, _ = interests_of(model, numbers)
    first = together[0][0]
    vector = model.item_vectors()[model.preprocessing.number(first.item)].detach()
    assert first.score == pytest.approx(float(interests[0, first.interest] @ vector), rel=1e-4)
    assert len(recommend(model, [["item-1"]], k=1000)[0]) == 39  # all there are
    with pytest.raises(ValueError, match="does not know the item 'item-999'"):
        recommend(model, [["item-999"]])


def test_diversity_changes_categories(model, people):
    histories = [["item-0", "item-5", "item-10"]]
    plain, diverse = (recommend(model, histories, k=10, diversity=value)[0] for value in (0.0, 100.0))
    group = {f"item-{number}": number % 5 for number in range(40)}

    def num_same(found):
        groups = [group[each.item] for each in found]
        return sum(a == b for at, a in enumerate(groups) for b in groups[:at])

    assert num_same(diverse) <= num_same(plain)
    assert len({group[each.item] for each in diverse[:5]}) == 5
    with pytest.raises(ValueError, match="diversity is about the categories of items"):
        recommend(create_model("mind", num_classes=9), [["1"]], diversity=0.5)


def test_an_index_recommends_about_the_same(model):
    pytest.importorskip("faiss")
    from torchcaps.retrieval import ItemIndex

    histories = [["item-3", "item-8", "item-9"]]
    exact, found = (recommend(model, histories, k=5, index=index)[0] for index in (None, ItemIndex(model)))
    assert [each.item for each in found] == [each.item for each in exact]  # of so few, all are seen


def test_explanations_are_couplings(model):
    history = ["item-3", "item-8", "item-9"]
    coupling = model.route(model.preprocessing([history]))["interests"].coupling[0]
    interests = explain_interests(model, history)
    assert [each.number for each in interests] == [0, 1, 2, 3]
    for interest in interests:
        assert sorted(share.item for share in interest.formed_by) == sorted(history)
        for share in interest.formed_by:
            assert share.coupling == pytest.approx(
                float(coupling[history.index(share.item), interest.number]), abs=1e-6
            )
    total = sum(share.coupling for interest in interests for share in interest.formed_by)
    assert total == pytest.approx(3, abs=1e-4)  # every item is shared out once
    with pytest.raises(ValueError, match="makes one vector of all items"):
        explain_interests(create_model("gru4rec", num_classes=4), ["1"])


def test_recovery_is_perfect_for_vectors_that_tell_groups(people):
    """A model whose items are the directions of their groups, and whose interests are the items themselves."""
    model = create_model("comirec-sa", num_classes=40, item_size=5, num_interests=5, max_length=40).eval()
    model.preprocessing = type(model.preprocessing)(items=people.interactions.item_names, max_length=40)
    with torch.no_grad():
        model.items.weight[1:] = torch.eye(5)[torch.from_numpy(people.groups)]
        histories = [
            people.interactions.items[people.interactions.starts[p] : people.interactions.starts[p + 1]]
            for p in range(120)
        ]
    liked = [set(row[row >= 0]) & set(people.groups[h - 1]) for row, h in zip(people.interests, histories)]

    def perfect(numbers):
        interests = torch.zeros(len(numbers), 5, 5)
        for person, row in enumerate(numbers):
            groups = people.groups[row[row > 0].numpy() - 1]
            interests[person] = torch.eye(5) * torch.tensor([[float(g in groups)] for g in range(5)])
        return interests, torch.ones(len(numbers), 5, dtype=torch.bool)

    model.interests = perfect
    found = interest_recovery(model, people, depth=8)
    assert found["recovered"] == found["purity"] == found["found"] == 1.0
    model.interests = lambda numbers: (perfect(numbers)[0].sum(1, keepdim=True), torch.ones(len(numbers), 1).bool())
    one = interest_recovery(model, people, np.arange(60), depth=8)
    assert one["recovered"] <= np.mean([1 / max(len(groups), 1) for groups in liked[:60]]) + 1e-6


def test_the_estimator_needs_a_table_alone(people, tmp_path):
    interactions = people.interactions
    users = np.repeat(interactions.user_names, np.diff(interactions.starts))
    table = {
        "user": users,
        "item": [interactions.item_names[number - 1] for number in interactions.items],
        "time": np.arange(len(users)),
        "group": [interactions.features[number - 1][0] for number in interactions.items],
    }
    columns = InteractionOptions(feature_columns=("group",), split="last")
    recommender = InterestRecommender("comirec-dr", model_options={"item_size": 8}, columns=columns, training=SHORT)
    with pytest.raises(ValueError, match="has learned nothing yet; call fit"):
        recommender.recommend(["person-0"])
    assert recommender.fit(table) is recommender
    assert {"recall@20", "diversity@50"} <= recommender.scores_.keys()
    found = recommender.recommend(["person-0", "person-1"], k=5)
    assert [len(each) for each in found] == [5, 5]
    assert not set(recommender.history("person-0")) & {each.item for each in found[0]}
    assert len(recommender.recommend(items=[["item-1", "item-2"]], k=3)[0]) == 3  # somebody the table does not know
    assert recommender.explain("person-0")[0].formed_by
    with pytest.raises(ValueError, match="nobody is called 'eve'"):
        recommender.recommend(["eve"])
    with pytest.raises(ValueError, match="give users of the table, or items"):
        recommender.recommend()
    recommender.save(tmp_path)
    again = InterestRecommender(columns=columns).load(tmp_path, table)
    assert again.recommend(["person-0"], k=5)[0] == found[0]
