"""The harness of the text experiments, on small sets of its own."""

import json

import numpy as np
import pytest

from torchcaps.data import DataSet
from torchcaps.data.text import TextSet, load_reuters
from torchcaps.experiments import zhao2018
from torchcaps.experiments.zhao2018 import TFIDF, Config, Score, load_split, score, summarise
from torchcaps.training import TrainingConfig

TOPICS = {"grain": "wheat corn harvest", "ship": "port vessel cargo", "trade": "tariff export import"}


def make_texts(num: int, seed: int, topics_each: int = 1) -> tuple[list[str], np.ndarray]:
    generator = np.random.default_rng(seed)
    texts, labels = [], np.zeros((num, 3), dtype=bool)
    for index in range(num):
        chosen = generator.choice(3, topics_each, replace=False)
        labels[index, chosen] = True
        words = [generator.choice(list(TOPICS.values())[topic].split()) for topic in np.repeat(chosen, 3)]
        texts.append(" ".join(generator.permutation([*words, "said", "the", "week", "a"])))
    return texts, labels


def make_set(multi_label: bool = False) -> DataSet:
    parts = []
    for num, seed, each in ((120, 0, 1), (30, 1, 2 if multi_label else 1)):
        texts, labels = make_texts(num, seed, each)
        parts.append(
            TextSet(texts=texts, labels=labels if multi_label else labels.argmax(1), class_names=tuple(TOPICS))
        )
    return DataSet(name="made", train=parts[0], test=parts[1], origin="", terms="")


@pytest.mark.parametrize("model", ["text-capsule-a", TFIDF])
@pytest.mark.parametrize("multi_label", [False, True])
def test_score(model, multi_label):
    config = Config(training=TrainingConfig(epochs=10, batch_size=16, learning_rate=0.01, ema=None))
    options = {} if model == TFIDF else {"channels": 16, "types": (8, 6), "pose_size": 8, "embedding_size": 16}
    outcome = score(model, make_set(multi_label), 0, config, **options)
    assert outcome.value > (0.65 if multi_label else 0.9)
    assert outcome.parameters > 0


def test_rows_are_percent_with_deviation():
    row = summarise("x", 82.3, [Score(0.8, 2.0, 7), Score(0.9, 4.0, 7)])
    assert (row.paper, row.ours, row.seconds, row.parameters) == (82.3, pytest.approx(85.0), 3.0, 7)
    assert row.deviation == pytest.approx(np.std([80, 90], ddof=1))
    assert summarise("x", None, [Score(0.8, 2.0, 7)]).deviation == 0


def test_table_and_ablation_name_their_rows(monkeypatch):
    asked = []

    def fake_score(model, data, seed, config, **options):
        asked.append((model, seed, options))
        return Score(0.5, 1.0, 10)

    monkeypatch.setattr(zhao2018, "score", fake_score)
    monkeypatch.setattr(zhao2018, "load_split", lambda name, seed: None)
    config = Config(sets=("mr",), models=("text-capsule-b", "text-cnn"), seeds=(0, 1))
    assert [(row.name, row.paper) for row in zhao2018.table(config)] == [
        ("mr text-capsule-b", 82.3),
        ("mr text-cnn", None),
    ]
    assert [seed for _, seed, _ in asked] == [0, 1, 0, 1]
    asked.clear()
    rows = list(zhao2018.ablation("mr", config))
    assert [row.paper for row in rows] == [None] * 10
    assert {"noise_class": True} in [options for *_, options in asked]
    assert {"routing": "em"} in [options for *_, options in asked]


def test_folds_are_disjoint_and_cover_everything(monkeypatch):
    texts, labels = make_texts(50, 0)
    whole = TextSet(texts=[f"{i} {t}" for i, t in enumerate(texts)], labels=labels.argmax(1), class_names=tuple(TOPICS))
    data = DataSet(name="mr", train=whole, test=None, origin="", terms="")
    monkeypatch.setattr(zhao2018, "load_texts", lambda name: data)
    folds = [load_split("mr", seed) for seed in range(10)]
    assert sorted(text for fold in folds for text in fold.test.texts) == sorted(whole.texts)
    assert all(not set(fold.train.texts) & set(fold.test.texts) for fold in folds)


def test_reuters_trains_on_one_topic_and_tests_on_several(tmp_path):
    rows = [
        *({"split": "train", "topics": ["earn"], "title": f"t{i}", "body": "b"} for i in range(3)),
        *({"split": "train", "topics": ["acq"], "title": "u", "body": "b"} for _ in range(2)),
        {"split": "train", "topics": ["acq", "earn"], "title": "both", "body": "b"},
        {"split": "train", "topics": ["earn", "rare"], "title": "other topic", "body": "b"},
        {"split": "test", "topics": ["acq", "earn", "rare"], "title": "several", "body": "b"},
        {"split": "test", "topics": ["earn"], "title": "one", "body": "b"},
        {"split": "test", "topics": ["rare"], "title": "none", "body": "b"},
    ]
    (tmp_path / "reuters21578-modapte.jsonl.gz").write_bytes(_gzip("\n".join(map(json.dumps, rows))))
    data = load_reuters(2, folder=tmp_path)
    assert data.class_names == ("acq", "earn")
    assert data.train.labels.sum(1).tolist() == [1] * 5
    assert data.test.texts == ("several. b",)
    assert load_reuters(2, several_only=False, folder=tmp_path).test.texts == ("several. b", "one. b")


def _gzip(text: str) -> bytes:
    import gzip

    return gzip.compress(text.encode())
