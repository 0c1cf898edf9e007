"""Texts on encoders: rows are complete and fair, the measures of similarity are what they say."""

import gzip
import json

import numpy as np
import pytest

from support.encoders import save_encoder
from torchcaps.data.text import TextOptions
from torchcaps.data.text.pairs import read_pairs
from torchcaps.experiments import encoders, find_experiment, sts
from torchcaps.experiments.harness import TEST_ERROR, Finished
from torchcaps.experiments.table import make_lines
from torchcaps.experiments.zhao2018 import F1_ERROR
from torchcaps.runs import RunConfig


def test_all_heads_stand_in_every_group_and_learn_alike():
    rows = find_experiment("encoders").choose_rows("full")
    for group in {row.group for row in rows}:
        configs = [row.config for row in rows if row.group == group]
        is_tuned = "fine-tuned" in group
        assert len(configs) == (len(encoders.TUNED_HEADS) if is_tuned else len(encoders.HEADS) + 1)  # and regression
        assert len({(c.data, c.text, c.training, c.validation, c.folds) for c in configs}) == 1
        assert {c.model_options.get("fine_tune", False) for c in configs} == {is_tuned}


def test_found_first_is_exact_and_ties_are_lost():
    similarity = np.array([[9, 1, 5, 2], [1, 9, 3, 4], [5, 3, 9, 3], [2, 4, 3, 9.0]])
    assert sts.found_first(similarity) == 1.0
    similarity[0, 1] = similarity[1, 0] = 5  # the first half is as near to another first half; so is the second one
    assert sts.found_first(similarity) == 0.5
    assert sts.found_first(np.ones((4, 4))) == 0.0


@pytest.fixture
def data(tmp_path, monkeypatch):
    pairs = [
        ("5", "a good film", "a good film"),
        ("", "a dog", "fun"),
        ("3", "a bad film", "a film"),
        ("0", "dog", "fun"),
    ]
    (tmp_path / "sts").mkdir()
    for name in ("2012.one.train", "2012.one.test", "2013.two.test"):
        text = "".join("\t".join(pair) + "\n" for pair in pairs)
        (tmp_path / "sts" / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    text = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tjudgment\n"
    text += "".join(f"{number}\t{a}\t{b}\t{score or 1}\tX\n" for number, (score, a, b) in enumerate(pairs))
    for name in ("SICK_train.txt.gz", "SICK_test_annotated.txt.gz"):
        (tmp_path / "sts" / name).write_bytes(gzip.compress(text.encode()))
    news = [
        {"split": split, "title": "", "topics": [], "body": " ".join([first] * 90 + [second] * 90)}
        for split in ("train", "test")
        for first, second in (("dog", "dog"), ("film fun", "film fun"), ("cat", "cat"))
    ]
    (tmp_path / "text" / "reuters21578").mkdir(parents=True)
    content = "\n".join(json.dumps(row) for row in news).encode()
    (tmp_path / "text" / "reuters21578" / sts.FILE).write_bytes(gzip.compress(content))
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_pairs_that_nobody_judged_are_left_out(data):
    names = {pairs.name: len(pairs.scores) for pairs in read_pairs("test")}
    assert names == {"2012.one": 3, "2013.two": 3, "SICK": 4}
    assert read_pairs("train")[0].first == ["a good film", "a bad film", "dog"]
    (data / "sts" / "2014.bad.test.tsv.gz").write_bytes(gzip.compress(b"a\tb\n"))
    with pytest.raises(ValueError, match="line 1: expected a score and two sentences"):
        read_pairs("test")
    with pytest.raises(FileNotFoundError, match="holds no pairs"):
        read_pairs("test", data / "text")


@pytest.mark.parametrize("name", [sts.TFIDF, "mean of the tokens", "K-Means"])
def test_a_method_is_measured(name, data, tmp_path):
    (row,) = [row for row in sts.rows("quick", "sts") if row.name == name]
    encoder = save_encoder(tmp_path / "encoder", positions=64)
    config = RunConfig(data="sts", model_options=row.config.model_options, text=TextOptions(encoder=encoder))
    sts.run_method(config, tmp_path / "run")
    found = sts.measure(tmp_path / "run")
    assert list(found) == ["STS 2012", "SICK", sts.HALVES]
    assert found[sts.HALVES] == 100
    assert RunConfig.read(tmp_path / "run") == config
    if name == sts.TFIDF:
        assert found["STS 2012"] == pytest.approx(100)


def test_the_figure_sets_every_method_beside_one_vector():
    measured = {sts.MEAN: (70, 60), "K-Means": (69, 61), sts.TFIDF: (55, 60)}
    rows = [row for row in sts.rows("full", "sts") if row.name in measured]
    finished = [
        Finished(row=row, config=row.config, result={}, measures=dict(zip(("SICK", sts.HALVES), figures, strict=True)))
        for row in rows
        for figures in [measured[row.name]]
    ]
    (axes,) = sts.draw(make_lines(rows, finished), "title", "caption").axes
    marks = {line.get_label(): line.get_xdata().tolist() for line in axes.lines[:2]}
    assert marks == {"SICK": [-15, -1], sts.HALVES: [0, 1]}
    assert [label.get_text() for label in axes.get_yticklabels()] == [sts.TFIDF, "K-Means"]


def test_regression_reads_the_mean_of_the_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    texts = [f"a {mood} {kind}" for mood in ("good", "bad", "sad") for kind in ("film", "dog", "cat", "movie")] * 4
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        lines = [f"{text}\t{'up' if 'good' in text else 'down'}" for text in texts]
        (tmp_path / "data" / f"{part}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    text = TextOptions(encoder=save_encoder(tmp_path / "encoder"))
    result = encoders.run_mean(RunConfig(data=str(tmp_path / "data"), text=text, validation=0.2), tmp_path / "run")
    assert result["accuracy"] > 0.8  # of an encoder at random; two texts of three are down
    assert result["parameters"] % 2 == 0
    assert RunConfig.read(tmp_path / "run").text == text


def test_the_figure_has_one_bar_for_a_row():
    rows = [row for row in encoders.rows("full", "") if row.name.startswith(("trec: first", "reuters-8: first"))]
    measured = {"trec: first token": {TEST_ERROR: 28.0}, "reuters-8: first token": {F1_ERROR: 34.0, TEST_ERROR: 99.0}}
    finished = [Finished(row=row, config=row.config, result={}, measures=measured[row.name]) for row in rows]
    (axes,) = encoders.draw(make_lines(rows, finished), "title", "caption").axes
    assert [bar.get_width() for bar in axes.patches] == [28, 34]
