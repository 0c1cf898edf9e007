"""Recommenders: padding and neighbours change nothing, the loss is what it says, saved folders rebuild them."""

import math

import numpy as np
import pytest
import torch

from torchcaps.data.interactions import InteractionOptions, generate_people, split_interactions
from torchcaps.losses import sampled_logits
from torchcaps.models import Recommender, create_model, list_models, load_model
from torchcaps.predictor import Predictor
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.recommend import new_recommender

NAMES = ["comirec-dr", "comirec-sa", "gru4rec", "mind", "popularity", "youtube-dnn"]


def make(name, **options):
    torch.manual_seed(0)
    return create_model(name, num_classes=30, item_size=8, max_length=5, **options).eval()


def histories():
    torch.manual_seed(1)
    lengths = torch.tensor([7, 3, 1, 5])
    return torch.where(torch.arange(7) < lengths[:, None], torch.randint(1, 31, (4, 7)), 0)


def test_all_are_listed():
    assert list_models("user") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_neighbours_change_nothing(name):
    model, rows = make(name), histories()
    output = model(rows)
    order = [3, 1, 0, 2]
    torch.testing.assert_close(model(rows[order]).scores, output.scores[order])
    for person, length in enumerate((7, 3, 1, 5)):
        alone = model(rows[person : person + 1, :length])
        torch.testing.assert_close(alone.scores[0], output.scores[person], rtol=1e-5, atol=1e-5)
        spread = torch.zeros(1, 2 * length + 3, dtype=torch.int64)
        spread[0, 1 : 2 * length : 2] = rows[person, :length]
        torch.testing.assert_close(model(spread).scores[0], output.scores[person], rtol=1e-5, atol=1e-5)
        assert not set(output.ranking[person].tolist()) & set(rows[person, :length].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_old_items_are_not_read_but_left_out(name):
    model = make(name)
    long = torch.tensor([[9, 8, 1, 2, 3, 4, 5]])
    short = long[:, 2:]
    torch.testing.assert_close(model(long).poses, model(short).poses)
    assert not {8, 9} & set(model(long).ranking[0].tolist())
    assert {8, 9} <= set(model(short).ranking[0].tolist())


@pytest.mark.parametrize("name", NAMES)
def test_who_has_used_nothing_gets_an_answer(name):
    output = make(name)(torch.zeros(1, 0, dtype=torch.int64))
    assert torch.isfinite(output.scores).all() or (output.ranking == 0).all()
    with pytest.raises(ValueError, match=r"histories must be int64 of shape \(B, T\)"):
        make(name)(torch.zeros(1, 2))


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_tells_the_probability_among_all_items(name):
    model, rows = make(name), histories()
    targets = torch.tensor([[29, 30], [11, 0], [12, 0], [13, 0]])
    targets = torch.where((targets.unsqueeze(2) == rows.unsqueeze(1)).any(2), 0, targets)
    found = model(rows, targets).scores
    with torch.no_grad():
        interests, present = model.interests(rows)
        scores = model.log_scale.exp() * interests @ model.item_vectors().T
        scores = scores.masked_fill(~present.unsqueeze(-1), -torch.inf).amax(1)
        scores[:, 0] = -torch.inf
        scores.scatter_(1, rows, -torch.inf)
        expected = scores.log_softmax(1).gather(1, targets)
    torch.testing.assert_close(found[targets > 0], expected[targets > 0])


def test_without_sampling_the_loss_is_the_softmax_over_all():
    model, rows = make("mind", num_negatives=0).train(), histories()
    taken = torch.tensor([[30], [12], [13], [14]])
    logits = model(rows, taken).scores
    assert logits.shape == (4, 31)
    interests, present = model.interests(rows)
    scores = model.log_scale.exp() * interests @ model.item_vectors()[1:].T
    scores = scores.masked_fill(~present.unsqueeze(-1), -torch.inf)
    best = scores.gather(2, (taken - 1).unsqueeze(1).expand(-1, 4, -1)).squeeze(2).argmax(1)
    expected = scores[torch.arange(4), best].log_softmax(1).gather(1, taken - 1)[:, 0]
    torch.testing.assert_close(logits.log_softmax(1)[:, 0], expected)


def test_sampled_softmax_with_its_correction_stands_for_all_items():
    torch.manual_seed(0)
    scores, q = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64).softmax(0)
    sums, wrong = [], []
    for _ in range(400):
        draws = torch.multinomial(q, 64, replacement=True)
        no_hit = torch.zeros(1, 64, dtype=torch.bool)
        logits = sampled_logits(scores[:1], scores[draws].unsqueeze(0), q[:1].log(), q[draws].log(), no_hit)
        sums.append(logits[0, 1:].exp().sum())
        wrong.append(scores[draws].exp().mean() * 50)
    total = scores.exp().sum()
    error = torch.stack(sums).std() / math.sqrt(400)
    assert abs(torch.stack(sums).mean() - total) < 4 * error
    q = torch.where(scores > 0, 10.0, 1.0)  # without correction what is drawn often counts too much
    q = q / q.sum()
    plain = scores[torch.multinomial(q, 20_000, replacement=True)].exp().mean() * 50
    assert plain > 1.2 * total


def test_items_with_features_share_them():
    people = generate_people(30, num_items=20, num_groups=4)
    model = new_recommender("youtube-dnn", people.interactions, item_size=8)
    vectors, table = model.item_vectors(), model.feature_values.weight
    torch.testing.assert_close(vectors[1], model.items.weight[1] + table[model.features[1, 0]])
    torch.testing.assert_close(model.item_vectors(torch.tensor([[3, 0]])), vectors[[3, 0]].unsqueeze(0))
    torch.testing.assert_close(model.item_vectors(torch.arange(21).repeat(2)), vectors.repeat(2, 1))
    assert not vectors[0].any()
    assert np.array_equal(model.categories()[1:5], [1, 2, 3, 4])
    assert create_model("mind", num_classes=3).categories() is None
    with pytest.raises(ValueError, match="cnn-small does not take|does not recommend items|num_features"):
        new_recommender("cnn-small", people.interactions)


@pytest.mark.parametrize("name", NAMES)
def test_saved_folders_rebuild_them(name, tmp_path):
    people = generate_people(30, num_items=20, num_groups=4)
    model = new_recommender(name, people.interactions)
    model.counts[1:] = torch.arange(20)
    model.eval().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    rows = torch.tensor([[1, 2, 3, 4, 0]])
    assert torch.equal(loaded(rows).scores, model(rows).scores)
    assert loaded.preprocessing == model.preprocessing
    assert np.array_equal(loaded.categories(), model.categories())
    assert "recommendations among 20 items" in (tmp_path / "README.md").read_text()
    assert isinstance(loaded, Recommender)


def test_mind_learns_what_popularity_cannot():
    people = generate_people(250, num_items=60, num_groups=6)
    parts = split_interactions(people.interactions, InteractionOptions(split="last"))
    scores = {}
    for name in ("mind", "popularity"):
        torch.manual_seed(0)
        model = new_recommender(name, people.interactions, **({"item_size": 16} if name == "mind" else {}))
        fit(model, parts.train, parts.validation, TrainingConfig(epochs=4, batch_size=64, learning_rate=2e-2))
        answers = Predictor(model).predict(parts.test.inputs)
        assert answers.dtype == np.int64
        scores[name] = model.task.score(answers, parts.test.labels)
    assert scores["mind"]["recall@20"] > scores["popularity"]["recall@20"] + 0.15


def test_a_stopped_training_goes_on_to_the_bit(tmp_path):
    people = generate_people(40, num_items=30, num_groups=4)
    parts = split_interactions(people.interactions)
    config = TrainingConfig(epochs=2, batch_size=32, checkpoint_minutes=1e-6)

    def train(folder, stop_at=None):
        torch.manual_seed(0)
        model = new_recommender("mind", people.interactions, item_size=8, num_negatives=8)

        def on_event(event):
            if event.progress.step == stop_at and not event.is_epoch_end:
                raise RuntimeError("stopped")

        fit(model, parts.train, parts.validation, config, folder=folder, on_event=on_event)
        return model.state_dict()

    whole = train(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        train(tmp_path / "stopped", stop_at=7)
    again = train(tmp_path / "stopped")
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
