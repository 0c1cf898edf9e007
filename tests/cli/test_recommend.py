"""Recommendations from the command line: train, evaluate, recommend, export."""

import csv
import json

import numpy as np
import pytest

from torchcaps.cli import main
from torchcaps.data.interactions import generate_people

COLUMNS = ["--title-column", "title", "--feature-columns", "group"]
TRAINING = ["--epochs", "2", "--batch-size", "64", "--learning-rate", "0.02", "--option", "item_size=8"]


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    interactions = generate_people(60, num_items=30, num_groups=5).interactions
    users = np.repeat(interactions.user_names, np.diff(interactions.starts))
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time", "title", "group"])
        for time, (user, number) in enumerate(zip(users, interactions.items)):
            writer.writerow([user, f"i{number}", time, f"Item {number}", (number - 1) % 5])
    return path


@pytest.fixture(scope="module")
def run(ratings):
    folder = ratings.parent / "run"
    arguments = ["train", "--task", "recommend", "--data", str(ratings), "--split", "last", "--out", str(folder)]
    assert main([*arguments, *COLUMNS, *TRAINING]) == 0
    return folder


def test_training_says_how_good_it_is_and_what_to_try(ratings, tmp_path, capsys):
    arguments = ["train", "--task", "recommend", "--data", str(ratings), "--model", "popularity"]
    assert main([*arguments, "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "validation recall@20" in " ".join(out.split())
    assert f"recommend {tmp_path / 'run'} --user ID --explain" in out
    assert "test: recall@20" in out.splitlines()[-1]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {"recall@20", "ndcg@50", "hit rate@20", "coverage@20", "validation_recall@20"} <= result.keys()


def test_evaluation_repeats_the_test(run, capsys):
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    result = json.loads((run / "result.json").read_text())
    for name in ("recall@20", "recall@50", "ndcg@20", "hit rate@50", "coverage@20", "diversity@20"):
        assert found[name] == pytest.approx(result[name])
    assert main(["evaluate", str(run)]) == 0
    assert "recall@20" in capsys.readouterr().out


def test_recommend_for_a_user_of_the_data(run, ratings, capsys):
    assert main(["recommend", str(run), "--user", "person-3", "--k", "5", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("interest 1 was formed by: Item ")
    found = [line.split("\t") for line in lines if line.startswith("i") and "\t" in line]
    assert len(found) == 5
    with ratings.open() as file:
        used = {row["item"] for row in csv.DictReader(file) if row["user"] == "person-3"}
    assert not used & {item for item, *_ in found}
    assert all(title == f"Item {item[1:]}" for item, title, *_ in found)
    assert main(["recommend", str(run), "--user", "person-3", "--k", "5", "--explain", "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert [each["item"] for each in same["recommended"]] == [item for item, *_ in found]
    assert same["interests"][0]["formed_by"][0]["item"] in used


def test_recommend_for_somebody_who_used_these_items(run, capsys):
    assert main(["recommend", str(run), "--items", "i1", "i6", "--k", "3", "--diversity", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recommended"]
    assert len({int(each["item"][1:]) % 5 for each in found}) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--user", "nobody"], "nobody is called 'nobody' among the 60 people"),
        (["--items", "i999"], "the model does not know the item 'i999'"),
        ([], "say who: --user of the data, or --items that somebody used"),
        (["--user", "person-1", "--items", "i1"], "say who"),
        (["--items", "i1", "--k", "0"], "k must be"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(run, arguments, sentence, capsys):
    assert main(["recommend", str(run), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_other_commands_and_models_are_told_apart(run, capsys):
    assert main(["recommend", "cnn-small-mnist", "--items", "1"]) == 2
    assert "which recommends nothing; use torchcaps predict" in capsys.readouterr().err
    assert main(["train", "--task", "recommend", "--data", "people", "--num-train", "5", "--out", "x"]) == 2
    assert "num_train is for classes of images and texts" in capsys.readouterr().err
    assert main(["predict", str(run), "x.png"]) == 2
    assert "torchcaps recommend" in capsys.readouterr().err
    assert main(["show", str(run), "couplings"]) == 2
    assert "there are no pictures of users; try torchcaps recommend" in capsys.readouterr().err


def test_a_stopped_run_goes_on(run, capsys):
    assert main(["train", "--resume", str(run)]) == 0  # it is finished: nothing is trained again
    assert "test: recall@20" in capsys.readouterr().out.splitlines()[-1]
