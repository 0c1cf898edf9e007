"""Zhao et al. 2018, "Investigating capsule networks with dynamic routing for text classification".

Every figure is the mean over folds or seeds of the accuracy on texts that no choice has seen: the best epoch, the
regularisation of logistic regression and the thresholds of several labels are chosen on validation texts.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from torchcaps.data import DataSet, TextSet, split_validation
from torchcaps.data.text import TextOptions, load_reuters, load_texts, read_texts
from torchcaps.data.text.sources import HOME_VARIABLE, SENTIMENTS, find_home
from torchcaps.data.text.tables import Columns
from torchcaps.predictor import TextPredictor
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.metrics import choose_threshold, multi_label_scores
from torchcaps.training.text import new_text_model

TFIDF = "tf-idf"
MODELS = ("text-capsule-a", "text-capsule-b", "text-cnn", "text-bilstm", "text-no-routing", TFIDF)
# Accuracy of Capsule-B as published, with word2vec vectors of 300 entries; AG's news on 120,000 lines.
PUBLISHED = {"mr": 82.3, "sst": 86.8, "subj": 93.8, "trec": 92.8, "agnews": 92.6}
CHINESE = ("waimai",)
NUM_FOLDS = 10
STRENGTHS = (1.0, 3.0, 10.0, 30.0)  # of logistic regression, tried on validation
SWITCHES = ("noise_class", "leaky", "partial", "amend")
ROUTINGS: dict[str, dict[str, Any]] = {
    "dynamic, 3 iterations": {"routing": "dynamic"},
    "K-Means": {"routing": "kmeans"},
    "entropy": {"routing": "entropy"},
    "EM": {"routing": "em"},
    "uniform": {"routing": "uniform"},
}


class Row(NamedTuple):
    """One line of a table: the published figure, ours in percent with its standard deviation, and what it took."""

    name: str
    paper: float | None
    ours: float
    deviation: float
    seconds: float
    parameters: int


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is computed.

    Attributes:
        sets: names of sets, see `torchcaps.data.text.SOURCES`.
        models: names of text models, and "tf-idf".
        seeds: one run each; for sets without a test part (MR, Subj, waimai) seed k tests on the k-th of ten folds.
        vectors: file of word vectors for English; None is GloVe's in $TORCHCAPS_DATA/vectors, where it is.
        training: of every network alike.
    """

    sets: tuple[str, ...] = ("trec", "subj", "mr", "sst", "agnews", "waimai")
    models: tuple[str, ...] = MODELS
    seeds: tuple[int, ...] = (0, 1, 2)
    vectors: str | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def text_options(self, name: str) -> TextOptions:
        """How the texts of a set are encoded."""
        home = os.environ.get(HOME_VARIABLE)
        usual = Path(home) / "vectors" / "glove6b-100d-subset.npz" if home else None
        vectors = self.vectors or (str(usual) if usual and usual.exists() else None)
        return TextOptions(vectors=None if name in CHINESE else vectors)


class Score(NamedTuple):
    """The outcome of one training."""

    value: float
    seconds: float
    parameters: int


def table(config: Config) -> Iterator[Row]:
    """Every model on every set."""
    for name in config.sets:
        for model in config.models:
            yield accuracy_row(name, model, config)


def ablation(name: str, config: Config, model: str = "text-capsule-a") -> Iterator[Row]:
    """The four stabilisers, each switched on alone, and the routings."""
    yield accuracy_row(name, model, config, label="none of the four")
    for switch in SWITCHES:
        yield accuracy_row(name, model, config, label=switch, **{switch: True})
    for label, options in ROUTINGS.items():
        yield accuracy_row(name, model, config, label=label, **options)


def several_topics(num_topics: int, config: Config, *, several_only: bool = True) -> Iterator[Row]:
    """Reuters: trained on news with one topic, tested on news with several; sample-averaged F1."""
    data = load_reuters(num_topics, several_only=several_only)
    for model in config.models:
        scores = [score(model, data, seed, config) for seed in config.seeds]
        yield summarise(f"{data.name} {model}", None, scores)


def accuracy_row(name: str, model: str, config: Config, *, label: str | None = None, **options: Any) -> Row:
    """One model on one set, over all seeds."""
    scores = [score(model, load_split(name, seed), seed, config, **options) for seed in config.seeds]
    is_published = model == "text-capsule-b" and not options
    return summarise(f"{name} {label or model}", PUBLISHED.get(name) if is_published else None, scores)


def summarise(name: str, paper: float | None, scores: Sequence[Score]) -> Row:
    """Mean and deviation over seeds, in percent."""
    values = np.array([100 * outcome.value for outcome in scores])
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    seconds = float(np.mean([outcome.seconds for outcome in scores]))
    return Row(name, paper, float(values.mean()), deviation, seconds, scores[0].parameters)


def load_split(name: str, seed: int) -> DataSet[TextSet]:
    """A set with a test part: its own, or one of ten folds that are the same in every run."""
    if name == "sst":
        return load_phrases()
    data = load_texts(name)
    if data.test is not None:
        return data
    fold = np.random.default_rng(0).permutation(len(data.train)) % NUM_FOLDS == seed % NUM_FOLDS
    train, test = (data.train.subset(np.flatnonzero(part)) for part in (~fold, fold))
    return replace(data, train=train, test=test)


def load_phrases() -> DataSet[TextSet]:
    """SST-2 with the phrases of its training sentences for training."""
    data = load_texts("sst")
    path = find_home("sst", "the phrases glue-sst2-train.tsv") / "glue-sst2-train.tsv"
    phrases, _ = read_texts(path, Columns(text_column="sentence", label_column="label"), ("0", "1"))
    return replace(data, train=TextSet(texts=phrases.texts, labels=phrases.labels, class_names=SENTIMENTS))


def score(model_name: str, data: DataSet[TextSet], seed: int, config: Config, **options: Any) -> Score:
    """Train once and test once: accuracy, or sample-averaged F1 where texts have several labels."""
    assert data.test is not None
    train, validation = split_validation(data.train, 0.1, seed)
    if model_name == TFIDF:
        return score_tfidf(train, validation, data.test, is_chinese=data.name in CHINESE)
    torch.manual_seed(seed)
    model = new_text_model(
        model_name,
        train.texts,
        class_names=data.class_names,
        multi_label=train.is_multi_label,
        options=config.text_options(data.name),
        others=(*validation.texts, *data.test.texts),
        **options,
    )
    started = time.monotonic()
    fit(model, train, validation, replace(config.training, seed=seed))
    seconds = time.monotonic() - started
    predictor = TextPredictor(model)
    chosen, judged = (predictor.predict_proba(part.texts) for part in (validation, data.test))
    value = judge(chosen, judged, validation, data.test)
    return Score(value, seconds, sum(parameter.numel() for parameter in model.parameters()))


def score_tfidf(train: TextSet, validation: TextSet, test: TextSet, *, is_chinese: bool) -> Score:
    """Logistic regression on words and pairs of words (Chinese: one to three characters)."""
    started = time.monotonic()
    vectoriser = (
        TfidfVectorizer(analyzer="char", ngram_range=(1, 3)) if is_chinese else TfidfVectorizer(ngram_range=(1, 2))
    )
    features = vectoriser.fit_transform(train.texts)
    # where a text may have several labels, each training text still has one here: its only class is learned
    targets = train.labels.argmax(1) if train.is_multi_label else train.labels
    held_out, seen = (vectoriser.transform(part.texts) for part in (validation, test))
    best: tuple[float, float] = (-1.0, 0.0)
    for strength in STRENGTHS:
        classifier = LogisticRegression(C=strength, max_iter=2000).fit(features, targets)
        chosen, judged = classifier.predict_proba(held_out), classifier.predict_proba(seen)
        best = max(best, (judge(chosen, chosen, validation, validation), judge(chosen, judged, validation, test)))
    num_classes = len(train.class_names)
    return Score(best[1], time.monotonic() - started, features.shape[1] * (num_classes if num_classes > 2 else 1))


def judge(chosen: np.ndarray, judged: np.ndarray, validation: TextSet, test: TextSet) -> float:
    """The accuracy on the test texts, or their sample-averaged F1 with the threshold that is best on validation."""
    if not test.is_multi_label:
        return float((judged.argmax(1) == test.labels).mean())
    threshold = choose_threshold(torch.from_numpy(chosen), torch.from_numpy(validation.labels))
    return multi_label_scores(torch.from_numpy(judged >= threshold), torch.from_numpy(test.labels))["sample_f1"]
