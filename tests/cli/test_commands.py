"""Train, evaluate, predict and the small commands, as a user runs them."""

import json

import numpy as np
import pytest
from PIL import Image

from torchcaps.cli import main
from torchcaps.cli.train import parse_option
from torchcaps.routing import routing_names

TINY = [
    "--model",
    "cnn-small",
    "--epochs",
    "2",
    "--batch-size",
    "16",
    "--learning-rate",
    "0.01",
    "--validation",
    "0.25",
]


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    """An .npz of horizontal (0) and vertical (1) stripes."""
    generator = np.random.default_rng(0)
    labels = np.arange(64) % 2
    pattern = (np.arange(20) % 4 < 2) * 160
    images = np.where(labels[:, None, None] == 0, pattern[:, None], pattern[None, :])
    images = (images + generator.integers(0, 90, (64, 20, 20))).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "stripes.npz"
    np.savez(path, x_train=images[:48], y_train=labels[:48], x_test=images[48:], y_test=labels[48:])
    return path


@pytest.fixture(scope="module")
def trained(stripes, tmp_path_factory):
    """A finished run on the stripes."""
    folder = tmp_path_factory.mktemp("runs") / "stripes"
    assert main(["train", "--data", str(stripes), "--out", str(folder), *TINY]) == 0
    return folder


def test_a_run_folder_has_everything(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "environment.json", "metrics.jsonl", "model", "report.png", "result.json"} <= names
    result = json.loads((trained / "result.json").read_text())
    assert result["accuracy"] >= 0.9
    environment = json.loads((trained / "environment.json").read_text())
    assert environment["versions"]["torch"]
    assert "git" in environment
    with Image.open(trained / "report.png") as report:
        assert min(report.size) > 400


def test_the_last_line_is_the_figure(stripes, tmp_path, capsys):
    main(["train", "--data", str(stripes), "--out", str(tmp_path / "run"), *TINY])
    *_, next_command, last = capsys.readouterr().out.strip().splitlines()
    assert last.startswith("test accuracy: ")
    assert last.endswith(f"% (16 images of {stripes})")
    assert "torchcaps predict" in next_command


def test_evaluate(trained, stripes, capsys):
    assert main(["evaluate", str(trained), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["accuracy"] == json.loads((trained / "result.json").read_text())["accuracy"]
    assert main(["evaluate", str(trained / "model"), "--data", str(stripes)]) == 0
    assert capsys.readouterr().out.startswith("test accuracy: ")


def test_predict(trained, tmp_path, capsys):
    path = tmp_path / "one.png"
    Image.fromarray(np.tile(((np.arange(20) % 4 < 2) * 200).astype(np.uint8)[:, None], (1, 20))).save(path)
    assert main(["predict", str(trained), str(path)]) == 0
    name, label, score = capsys.readouterr().out.strip().split("\t")
    assert (name, label) == (str(path), "0")
    assert 0.5 < float(score) <= 1
    assert main(["predict", str(trained), str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["class"] == "0"
    assert set(answer["scores"]) == {"0", "1"}


def test_a_finished_run_can_be_resumed(trained, capsys):
    assert main(["train", "--resume", str(trained)]) == 0
    assert "test accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--data", "nowhere.npz"], "nowhere.npz"),
        (["train", "--model", "capsnet-smal"], "did you mean 'capsnet-small'"),
        (["train", "--routing", "kmean"], "did you mean 'kmeans'"),
        (["train", "--option", "reconstruct"], "--option takes name=value"),
        (["train", "--option", "routing_options={num_iterations:2}"], "put the option in single quotes"),
        (["train", "--option", "reconstuct=false"], "did you mean 'reconstruct'?"),
        (["train", "--option", "num_classes=3"], "num_classes is no option of the model: it comes from the data"),
        (["train", "--vectors", "some.txt"], "digits holds images, and the options of text are for texts"),
        (["train", "--data", "movie-snippets", "--scaling", "standardise"], "the options of scaling are for images"),
        (["train", "--early-stopping", "2", "--validation", "0"], "need validation data"),
        (["evaluate", "capsnet-small-mnist", "--data", "letters"], "it has none that is called 'a' but 0, 1, 2"),
        (["evaluate", "finished"], "finished, but its model was not kept"),
        (["evaluate", "capsule-a-movie-snippets", "--data", "parts.csv"], "validation but none for the test"),
        (["evaluate", "unfinished"], "not finished; go on with: torchcaps train --resume unfinished"),
        (["train", "--resume", "nothing"], "nothing is not a run folder"),
        (["train", "--resume", "unfinished", "--epochs", "5"], "a run that is resumed keeps its options"),
        (["train", "--data", "one"], "one has only the class 'a'; a classifier needs at least two"),
        (["show", "capsnet-small-mnist", "--text", "good"], "takes images; give --image instead of 'good'"),
        (["show", "capsule-a-movie-snippets", "--image", "x.png"], "takes texts; give --text instead of 'x.png'"),
        (["evaluate", "nothing"], "no model at 'nothing'"),
        (
            ["show", "matrix-capsnet-small-smallnorb"],
            "give something to show with --image or --data",
        ),
        (["evaluate", "matrix-capsnet-small-smallnorb"], "`torchcaps data fetch smallnorb`, or put its files into"),
        (["predict", "capsnet-small-mnist", "letters"], "letters is a folder, not a file"),
        (["predict", "nothing", "x.png"], "no model at 'nothing'"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    for name in ("letters/a", "letters/b", "one/a"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (28, 28)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "parts.csv").write_text("text,label,split\na,negative,train\nb,positive,dev\n")
    for name, file in (("unfinished", "environment.json"), ("finished", "result.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_models_and_doctor(capsys):
    assert main(["models"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("capsnet-small", *routing_names()))
    assert main(["doctor"]) == 0
    assert "fused kernels" in capsys.readouterr().out


def test_options_as_python_and_json_write_them():
    given = ["a=False", "b=true", "c=None", 'd={"x": 1}', "e=kmeans", "f=0.5"]
    assert dict(map(parse_option, given)) == {"a": False, "b": True, "c": None, "d": {"x": 1}, "e": "kmeans", "f": 0.5}
