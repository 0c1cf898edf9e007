"""The text experiments: their rows, the baseline without a network, Reuters."""

import gzip
import json

import numpy as np
import pytest

from torchcaps import runs
from torchcaps.data.text.reuters import read_reuters
from torchcaps.experiments import find_experiment, zhao2018
from torchcaps.experiments.harness import TEST_ERROR, run_rows, with_seed
from torchcaps.runs import RunConfig, load_run_data

TOPICS = {"grain": "wheat corn harvest", "ship": "port vessel cargo", "trade": "tariff export import"}


def write_texts(path, num: int, seed: int, topics_each: int = 1, separator: str = "|") -> None:
    generator, lines = np.random.default_rng(seed), ["text\tlabel"]
    names = list(TOPICS)
    for _ in range(num):
        chosen = generator.choice(3, topics_each, replace=False)
        words = [generator.choice(TOPICS[names[topic]].split()) for topic in np.repeat(chosen, 3)]
        text = " ".join(generator.permutation([*words, "said", "the", "week", "a"]))
        lines.append(f"{text}\t{separator.join(names[topic] for topic in chosen)}")
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(("several", "validation"), [(False, 0.1), (False, 0.0), (True, 0.1)])
def test_baseline_without_a_network(tmp_path, several, validation):
    write_texts(tmp_path / "train.tsv", 120, 0)
    write_texts(tmp_path / "test.tsv", 30, 1, 2 if several else 1)
    options = zhao2018.TextOptions(label_separator="|" if several else None)
    config = RunConfig(data=str(tmp_path), text=options, validation=validation)
    result = zhao2018.run_tfidf(config, tmp_path / "run")
    assert result["accuracy"] > (0.2 if several else 0.9)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert RunConfig.read(tmp_path / "run") == config
    if several:
        assert zhao2018.f1_error(tmp_path / "run")[zhao2018.F1_ERROR] == pytest.approx(100 * (1 - result["sample_f1"]))
        assert result["sample_f1"] > 0.7


def test_the_baseline_learns_from_all_that_the_networks_learn_from(tmp_path, monkeypatch):
    write_texts(tmp_path / "train.tsv", 100, 0)
    write_texts(tmp_path / "test.tsv", 30, 1)
    sizes, fit = [], zhao2018.fit_tfidf
    monkeypatch.setattr(zhao2018, "fit_tfidf", lambda train, *options: sizes.append(len(train)) or fit(train, *options))
    for validation in (0.2, 0.0):
        zhao2018.run_tfidf(RunConfig(data=str(tmp_path), validation=validation), tmp_path / "run")
    assert sizes == [80] * 5 + [90] * 4 + [100]


def test_a_class_that_no_training_text_has_alone_has_no_probability():
    classifier = zhao2018.LogisticRegression().fit(np.eye(2), [0, 2])
    probabilities = zhao2018.class_probabilities(classifier, np.eye(2), 4)
    assert (probabilities[:, [1, 3]] == 0).all()
    assert probabilities.argmax(1).tolist() == [0, 2]


def test_rows_of_both_scales():
    experiment = find_experiment("zhao2018")
    full, quick = experiment.choose_rows("full"), experiment.choose_rows("quick")
    assert len(full) == 8 * 7 + 9
    assert len(quick) == 2 * 7 + 9
    published = {row.name: row.published for row in full if row.published}
    assert published["mr: Capsule-B"] == {TEST_ERROR: pytest.approx(100 - 82.3)}
    assert set(published) == {f"{name}: Capsule-B" for name in ("trec", "subj", "mr", "sst-phrases", "agnews")}
    options = [row.config.model_options for row in full if row.group.startswith("ablation")]
    assert options[0] == {}
    assert {"noise_class": True} in options
    assert {"routing": "em"} in options
    assert {row.config.text.vectors for row in full} == {zhao2018.VECTORS, None}
    assert all(row.config.text.vectors is None for row in quick)
    assert {row.config.data for row in full if row.config.validation} == set(zhao2018.WITH_VALIDATION)
    evidence = {row.config.data for row in full if row.config.model_options.get("word_evidence") is False}
    assert evidence == set(zhao2018.WITHOUT_EVIDENCE)
    for data, given in zhao2018.ALIKE.items():
        networks = [row.config for row in full if row.config.data == data and row.config.model is not None]
        assert len(networks) == len(zhao2018.MODELS)
        assert all(given.items() <= network.model_options.items() for network in networks)


def test_rows_run_in_the_harness(tmp_path, monkeypatch):
    monkeypatch.setattr(zhao2018, "QUICK_TRAIN", 120)
    monkeypatch.setattr(zhao2018, "QUICK_TEST", 40)
    rows = find_experiment("zhao2018").choose_rows("quick", only=["movie-snippets: no routing", "movie-snippets: TF"])
    finished = run_rows(rows, tmp_path)
    assert [0 < done.measures[TEST_ERROR] < 100 for done in finished] == [True, True]
    assert [done.result["num_test"] for done in finished] == [40, 40]


def test_folds_are_disjoint_and_cover_everything(tmp_path):
    write_texts(tmp_path / "a.tsv", 50, 0)
    config = RunConfig(data=str(tmp_path / "a.tsv"), folds=10)
    folds = [load_run_data(with_seed(config, seed)) for seed in range(10)]
    whole = load_run_data(RunConfig(data=str(tmp_path / "a.tsv"))).train
    assert sorted(text for fold in folds for text in fold.test.texts) == sorted(whole.texts)
    assert all(len(fold.train) + len(fold.test) == 50 for fold in folds)
    with pytest.raises(ValueError, match="folds must be at least 0"):
        RunConfig(folds=-1)


def test_validation_data_of_a_set_are_used(tmp_path, monkeypatch):
    folder = tmp_path / "text" / "sst"
    folder.mkdir(parents=True)
    for name, lines in (("train", "0 bad\n1 good\n"), ("dev", "1 fine\n0 poor\n"), ("test", "1 great\n")):
        (folder / f"stsa.binary.{name}").write_text(lines)
    (folder / "glue-sst2-train.tsv").write_text("sentence\tlabel\nbad phrase\t0\ngood phrase\t1\n")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    for name, texts in (("sst", ("bad", "good")), ("sst-phrases", ("bad phrase", "good phrase"))):
        config = RunConfig(data=name)
        train, validation = runs.training_parts(config, load_run_data(config))
        assert (train.texts, validation.texts) == (texts, ("fine", "poor"))
        assert train.labels.tolist() == [0, 1]


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
    content = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "reuters21578-modapte.jsonl.gz").write_bytes(content)
    train, test = read_reuters(tmp_path, 2)
    assert train.class_names == ("acq", "earn")
    assert train.labels.sum(1).tolist() == [1] * 5
    assert test.texts == ("several. b",)
    assert test.labels.tolist() == [[True, True]]
