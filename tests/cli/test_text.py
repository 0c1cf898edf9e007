"""The command line on texts: train on a table, evaluate, predict, explain."""

import io
import json
import warnings

import numpy as np
import pytest
from rich.console import Console

from support.encoders import save_encoder
from torchcaps import load
from torchcaps.cli import main
from torchcaps.cli.notices import notices
from torchcaps.inputs.texts import TextNotice

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")
FILLER = ("the", "film", "was", "a", "story", "with", "actors", "music", "and", "plot")
SMALL = ["--option", "channels=16", "types=[8,8]", "pose_size=8", "embedding_size=16", "word_dropout=0.0"]


def write_reviews(path, num: int = 240, seed: int = 0, header: str = "review,stars") -> None:
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(num):
        words = list(generator.choice(FILLER, generator.integers(5, 12)))
        words[generator.integers(len(words))] = generator.choice(GOOD if index % 2 else BAD)
        rows.append(f"{' '.join(words)},{'up' if index % 2 else 'down'}")
    path.write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table of reviews: (run folder, data folder)."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "data").mkdir()
    write_reviews(folder / "data" / "train.csv")
    write_reviews(folder / "data" / "test.csv", 40, seed=1)
    columns = ["--text-column", "review", "--label-column", "stars"]
    arguments = ["train", "--data", str(folder / "data"), *columns, "--out", str(folder / "run"), *SMALL]
    assert main([*arguments, "--epochs", "12", "--batch-size", "16", "--learning-rate", "0.01", "--ema", "0.9"]) == 0
    return folder / "run", folder / "data"


def test_train_detects_texts_and_learns(trained):
    run, _ = trained
    result = json.loads((run / "result.json").read_text())
    assert (result["kind"], result["num_test"]) == ("text", 40)
    assert result["accuracy"] >= 0.9
    assert (run / "report.png").stat().st_size > 10_000
    assert (run / "mistakes.tsv").read_text().startswith("confidence\ttrue\tfound\ttext\n")
    assert json.loads((run / "model" / "config.json").read_text())["model"] == "text-capsule-a"


def test_evaluate(trained, capsys):
    run, data = trained
    assert main(["evaluate", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] == json.loads((run / "result.json").read_text())["accuracy"]
    assert result["texts"] == 40
    other = data.parent / "other.csv"
    write_reviews(other, 30, seed=2, header="words,verdict")
    columns = ["--text-column", "words", "--label-column", "verdict"]
    assert main(["evaluate", str(run), "--data", str(other), *columns]) == 0
    assert "(30 texts of " in capsys.readouterr().out
    assert main(["evaluate", str(run), "--data", "digits"]) == 2
    assert main(["evaluate", str(run), "--crops", "3"]) == 2
    assert "crops are for images" in capsys.readouterr().err


def test_predict_from_options_files_and_standard_input(trained, capsys, tmp_path, monkeypatch):
    run, _ = trained
    assert main(["predict", str(run), "--text", "a great story", "an awful film"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[1]) for line in lines] == [("a great story", "up"), ("an awful film", "down")]
    (tmp_path / "a.txt").write_text("a lovely film\n\nthe plot was dull\n")
    assert main(["predict", str(run), str(tmp_path / "a.txt"), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == ["a lovely film", "", "the plot was dull"]
    assert (answers[0]["class"], answers[2]["class"]) == ("up", "down")
    assert set(answers[0]["scores"]) == {"down", "up"}
    for named in ([], ["-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a poor story\na fine one\n")))
        assert main(["predict", str(run), *named]) == 0
        assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["down", "up"]


def test_predict_reads_the_text_column_of_a_table(trained, capsys, tmp_path):
    run, data = trained
    assert main(["predict", str(run), str(data / "test.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 40
    assert not any("stars" in line or ",up" in line for line in lines)
    (tmp_path / "other.jsonl").write_text('{"words": "a good film"}\n')
    assert main(["predict", str(run), str(tmp_path / "other.jsonl"), "--text-column", "words"]) == 0
    assert capsys.readouterr().out.startswith("a good film\tup\t")


def test_tables_without_a_header(trained, capsys, tmp_path):
    run, data = trained
    bare = tmp_path / "bare.csv"
    bare.write_text("".join((data / "test.csv").read_text().splitlines(keepends=True)[1:]))
    columns = ["--no-header", "--text-column", "1"]
    assert main(["predict", str(run), str(bare), *columns]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 40
    assert main(["predict", str(run), str(bare)]) == 2
    assert "--no-header" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--data", str(bare), *columns, "--label-column", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == 40
    arguments = ["train", "--data", str(bare), *columns, "--label-column", "2", "--out", str(tmp_path / "run"), *SMALL]
    assert main([*arguments, "--epochs", "1"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(bare), "--json"]) == 0  # as in the run
    assert json.loads(capsys.readouterr().out)["texts"] == 40


def test_reasons_without_colours_are_numbers(trained, capsys):
    assert main(["predict", str(trained[0]), "--text", "the film was good", "--explain"]) == 0
    _, reasons = capsys.readouterr().out.splitlines()
    assert [word.partition("(")[0] for word in reasons.split()] == ["the", "film", "was", "good"]
    assert "good(+" in reasons


def test_reasons_for_a_class_by_name(trained):
    predictor = load(trained[0])
    assert predictor.explain(["a good film"], ["up"]) == predictor.explain(
        ["a good film"], [predictor.labels.index("up")]
    )
    with pytest.raises(ValueError, match="a class must be one of 'down', 'up', got 'upp'; did you mean 'up'"):
        predictor.explain(["a good film"], ["upp"])
    assert repr(predictor) == "Predictor(text-capsule-a, 2 classes: down, up)"


def test_reasons_find_the_word(trained, capsys):
    run, _ = trained
    assert main(["predict", str(run), "--text", "the film with awful music and actors", "--explain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert max(answer["reasons"], key=lambda reason: reason[1])[0] == "awful"


def test_removing_the_reasons_lowers_the_class_more_than_removing_any_words(trained):
    predictor, generator = load(trained[0]), np.random.default_rng(0)
    lines = (trained[1] / "test.csv").read_text().splitlines()[1:]
    better = []
    for line in lines:
        words = line.split(",")[0].split()
        chosen, num = int(predictor.predict([" ".join(words)])[0]), max(1, round(0.2 * len(words)))
        values = [reason.value for reason in predictor.explain([" ".join(words)], [chosen])[0]]
        top = set(np.argsort(values)[::-1][:num].tolist())
        draws = [top] + [set(generator.choice(len(words), num, replace=False).tolist()) for _ in range(10)]
        rest = [" ".join(word for index, word in enumerate(words) if index not in draw) for draw in draws]
        scores = predictor.run(rest).scores[:, chosen]
        better.append(float(scores[0]) < float(scores[1:].mean()))
    assert np.mean(better) >= 0.8


def test_load_gives_a_predictor_of_texts(trained):
    predictor = load(trained[0])
    texts = ["a great story", "the film was awful", "good"]
    assert predictor.predict(texts).tolist() == [1, 0, 1]
    probabilities = predictor.predict_proba(texts * 3, batch_size=2)
    np.testing.assert_allclose(probabilities, np.tile(predictor.predict_proba(texts), (3, 1)), rtol=1e-4)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    with pytest.raises(TypeError, match="got one string; put it in a list"):
        predictor.predict("a great story")


@pytest.mark.parametrize("may_be_empty", [True, False])
def test_several_labels_choose_their_threshold_on_validation(may_be_empty, tmp_path, capsys):
    generator, rows = np.random.default_rng(0), []
    for _ in range(160):
        words, labels = list(generator.choice(FILLER, 8)), []
        for topic, names in (("up", GOOD), ("down", BAD)):
            if generator.random() < 0.5:
                words[generator.integers(8)], labels = generator.choice(names), [*labels, topic]
        if not labels and not may_be_empty:
            words[0], labels = GOOD[0], ["up"]
        rows.append(f"{' '.join(words)}\t{'|'.join(labels)}")
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows[:130]]))
    (tmp_path / "test.tsv").write_text("\n".join(["text\tlabel", *rows[130:]]))
    arguments = ["train", "--data", str(tmp_path), "--label-separator", "|", "--out", str(tmp_path / "run"), *SMALL]
    assert main([*arguments, "--epochs", "4", "--batch-size", "16", "--learning-rate", "0.01"]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["threshold"] == load(tmp_path / "run").model.task.threshold != 0.5
    assert {"exact_match", "micro_f1", "sample_f1", "sample_precision", "micro_recall"} <= set(result)
    assert "micro F1" in capsys.readouterr().out
    predictor = load(tmp_path / "run")
    assert predictor.predict(["good film"]).shape == (1, 2)
    assert predictor.model.task.at_least_one != may_be_empty
    predictor.model.task.threshold = 1.1
    assert predictor.predict(["good film", "film"]).any(1).tolist() == 2 * [not may_be_empty]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "one.csv"], "has only the class"),
        (["--data", "binary.csv"], "is not a text file"),
        (["--data", "reviews.csv", "--label-column", "star"], "did you mean 'stars'?"),
        (["--data", "reviews.csv", "--label-column", "stars", "--model", "capsnet-small"], "does not take texts"),
        (["--data", "digits", "--model", "text-cnn"], "does not take images"),
        (["--data", "reviews.csv", "--label-column", "stars", "--vectors", "none.txt"], "no word vectors at none.txt"),
    ],
)
def test_wrong_input_ends_in_one_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path / "reviews.csv", 10)
    (tmp_path / "one.csv").write_text("text,label\na,1\nb,1\n")
    (tmp_path / "binary.csv").write_bytes(b"\x00\x01\x02")
    assert main(["train", "--out", "run", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run" / "model").exists()


def test_long_and_empty_texts_are_noted_and_nothing_is_lost(tmp_path, capsys):
    write_reviews(tmp_path / "a.csv", 20, header="text,label")
    with open(tmp_path / "a.csv", "a") as file:
        file.write(f"{'word ' * 100_000},up\n,down\n")
    arguments = ["train", "--data", str(tmp_path / "a.csv"), "--out", str(tmp_path / "run"), "--epochs", "1", *SMALL]
    assert main([*arguments, "--max-length", "20", "--validation", "0.3"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "note: 1 of 22 texts are empty" in output
    assert "texts are longer than 20 tokens and were cut there" in output
    assert "(there are no test texts)" in output
    assert (tmp_path / "run" / "model").exists()


def test_what_is_noted_is_noted_once(capsys):
    with notices(Console(soft_wrap=True)):
        for _ in range(2):
            warnings.warn("a note", TextNotice, stacklevel=1)
            with warnings.catch_warnings():  # after which Python forgets what it had said
                pass
        warnings.warn("another note", TextNotice, stacklevel=1)
    assert capsys.readouterr().out == "note: a note\nnote: another note\n"


def test_train_on_an_encoder_predict_and_evaluate(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    encoder, run = save_encoder(tmp_path / "encoder"), tmp_path / "run"
    write_reviews(tmp_path / "reviews.csv", 60)
    columns = ["--data", str(tmp_path / "reviews.csv"), "--text-column", "review", "--label-column", "stars"]
    assert main(["train", *columns, "--encoder", encoder, "--epochs", "1", "--out", str(run)]) == 0
    assert json.loads((run / "model" / "config.json").read_text())["model"] == "text-capsules"
    capsys.readouterr()
    assert main(["predict", str(run), "--text", "an unbearable film", "--explain", "--json"]) == 0
    reasons = json.loads(capsys.readouterr().out)["reasons"]
    assert [word for word, _ in reasons] == ["an", "unbearable", "film"]
    assert main(["evaluate", str(run), *columns]) == 0
    assert "(60 texts of " in capsys.readouterr().out
