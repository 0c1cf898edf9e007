"""The harness of experiments: what is finished is not done again, tables and figures say where figures come from."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image

from torchcaps import runs
from torchcaps.cli import main
from torchcaps.experiments import EXPERIMENTS, find_experiment, harness, table
from torchcaps.experiments.harness import TEST_ERROR, Experiment, Row, finished_runs, run_rows
from torchcaps.runs import RunConfig
from torchcaps.storage import write_json
from torchcaps.training import Diverged, Interrupted, TrainingConfig


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """An .npz of dark (0) and bright (1) images."""
    generator = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = (generator.integers(0, 120, (48, 20, 20)) + 100 * labels[:, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "noise.npz"
    np.savez(path, x_train=images[:32], y_train=labels[:32], x_test=images[32:], y_test=labels[32:])
    return path


def make_rows(scale: str, data: str) -> list[Row]:
    training = TrainingConfig(epochs=1 if scale == "quick" else 2, batch_size=16)
    config = RunConfig(data=data, model="cnn-small", validation=0.0, training=training)
    return [
        Row(name="A & b", config=config, published={TEST_ERROR: 5.2}, where="table 7", group="first"),
        Row(name="no routing", config=replace(config, model="no-routing"), group="second"),
    ]


EXPERIMENT = Experiment(
    name="made",
    title="dark or bright",
    source="A. Author, 1999",
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "a second", "full": "a day"},
    rows=make_rows,
    remark="Made here.",
)


def test_every_row_comes_before_the_next_seed_and_nothing_is_done_twice(noise, tmp_path):
    trained = []

    def remember(config, folder, on_event):
        trained.append((config.model, config.training.seed))
        return runs.run(config, folder, on_event)

    rows = [replace(row, run=remember) for row in make_rows("quick", str(noise))]
    run_rows(rows[:1], tmp_path)
    told = []
    finished = run_rows(rows, tmp_path, num_seeds=2, on_finish=lambda done: told.append(done.row.name))
    assert trained == [("cnn-small", 0), ("no-routing", 0), ("cnn-small", 1), ("no-routing", 1)]
    assert told == ["no routing", "A & b", "no routing"]
    assert [(done.row.name, done.config.training.seed) for done in finished] == [
        *(("A & b", 0), ("no routing", 0)),
        *(("A & b", 1), ("no routing", 1)),
    ]
    accuracy = json.loads((tmp_path / "a-b" / "seed-1" / "result.json").read_text())["accuracy"]
    assert finished[2].measures == {TEST_ERROR: 100 * (1 - accuracy)}
    assert len(finished_runs(rows, tmp_path)) == 4
    run_rows(rows[:1], tmp_path, num_seeds=2, first_seed=1)
    assert trained[4:] == [("cnn-small", 2)]
    changed = [replace(rows[0], config=replace(rows[0].config, num_train=20))]
    with pytest.raises(ValueError, match="holds another run than 'A & b' is today; give another folder with --out"):
        run_rows(changed, tmp_path)


def test_what_was_trained_elsewhere_is_not_trained_again(noise, tmp_path):
    rows = make_rows("quick", str(noise))
    run_rows(rows[:1], tmp_path / "first")
    events = []
    others = [replace(rows[0], name="other name"), rows[1]]
    finished = run_rows(others, tmp_path / "second", reuse=[tmp_path / "first"], on_event=events.append)
    assert {event.progress.total_steps for event in events} == {2}  # the second row alone was trained
    assert sum(event.is_epoch_end for event in events) == 1
    first, second = (
        tmp_path / place / "seed-0" / "model" / "model.safetensors" for place in ("first/a-b", "second/other-name")
    )
    assert first.read_bytes() == second.read_bytes()
    assert finished[0].result == run_rows(rows[:1], tmp_path / "first")[0].result
    assert len(run_rows(others, tmp_path / "second")) == 2
    events.clear()
    (again,) = run_rows([replace(rows[1], name="a third name")], tmp_path / "second", on_event=events.append)
    assert again.result == finished[1].result
    assert not events


def test_an_interrupted_run_goes_on_where_it_stopped(noise, tmp_path):
    rows = make_rows("full", str(noise))[:1]
    run_rows(rows, tmp_path / "whole")
    steps = []

    def stop(event):
        steps.append(event.progress.step)
        if len(steps) == 3:  # the first step of the second epoch, after the two steps and the end of the first
            raise Interrupted

    with pytest.raises(Interrupted):
        run_rows(rows, tmp_path / "cut", on_event=stop)
    assert finished_runs(rows, tmp_path / "cut") == []
    later = []
    run_rows(rows, tmp_path / "cut", on_event=lambda event: later.append(event.progress.step))
    assert later[0] > 1
    weights = [tmp_path / name / "a-b" / "seed-0" / "model" / "model.safetensors" for name in ("whole", "cut")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_run_that_diverges_is_a_finding(noise, tmp_path):
    def diverge(config, folder, on_event):
        write_json(folder / runs.CONFIG, asdict(config))
        raise Diverged("the gradient of conv1.weight is not finite at step 3")

    first_row, second_row = make_rows("quick", str(noise))
    rows = [replace(first_row, run=diverge), second_row]
    finished = run_rows(rows, tmp_path)
    assert "conv1.weight" in finished[0].diverged
    first, second = table.make_lines(rows, finished)
    assert (first.values, first.num_diverged, first.cells()[3]) == ((), 1, "- (1 diverged)")
    assert (len(second.values), second.num_diverged) == (1, 0)


def test_a_figure_shows_percents_and_of_very_many_the_first_and_the_published():
    line = table.Line(
        group="", name="", measured="", published=None, where="", values=(1.0,), num_diverged=0, parameters=1, minutes=1
    )
    few = [replace(line, name="a", measured=measured) for measured in ("error, %", "seconds", "other error, %")]
    assert [drawn.measured for drawn in table.drawn_lines(few)] == ["error, %", "other error, %"]
    many = [
        replace(line, name=name, measured=f"error {number}, %", published=5.0 if (name, number) == ("b", 7) else None)
        for name in ("a", "b")
        for number in range(table.MOST_BARS)
    ]
    assert [(drawn.name, drawn.measured) for drawn in table.drawn_lines(many)] == [
        ("a", "error 0, %"),
        ("b", "error 0, %"),
        ("b", "error 7, %"),
    ]


def test_lines_are_means_over_seeds():
    row = make_rows("quick", "digits")[0]
    finished = [
        harness.Finished(
            row=row, config=row.config, measures={TEST_ERROR: value}, result={"seconds": seconds, "parameters": 1234}
        )
        for value, seconds in ((1.0, 60), (3.0, 120), (5.0, 180))
    ]
    (line,) = table.make_lines([row], finished)
    assert line.cells() == ("A & b", TEST_ERROR, "5.20", "3.00", "2.00", "3", "1,234", "2.0")
    (empty,) = table.make_lines([row], [])
    assert empty.cells() == ("A & b", TEST_ERROR, "5.20", "-", "-", "0", "-", "-")
    (single,) = table.make_lines([row], finished[:1])
    assert single.deviation is None


def test_rows_are_chosen_by_parts_of_their_names_or_by_a_whole_name():
    longer = [replace(row, name=f"{row.name}, longer") for row in make_rows("quick", "digits")]
    experiment = replace(EXPERIMENT, rows=lambda scale, data: [*make_rows(scale, data), *longer])

    def chosen(*only):
        return [row.name for row in experiment.choose_rows("quick", only=only)]

    assert len(chosen()) == 4
    assert chosen("no rou") == chosen("second") == ["no routing", "no routing, longer"]
    assert chosen("no routing") == ["no routing"]
    assert chosen("no routing", "A &") == ["A & b", "no routing", "A & b, longer"]


def test_at_the_command_line(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torchcaps.experiments.find_experiment", lambda name: EXPERIMENT)
    command = ["reproduce", "made", "--data", str(noise), "--out", str(tmp_path)]
    assert main([*command, "--quick", "--only", "second", "--note", "Seen once."]) == 0
    told = capsys.readouterr().out
    assert "no routing, seed 0" in told
    assert "A & b, seed 0" not in told
    assert main([*command, "--quick"]) == 0
    told = capsys.readouterr().out
    assert "A & b, seed 0" in told
    assert "no routing, seed 0" not in told
    text = (tmp_path / "table.md").read_text()
    assert "| A & b | test error, % | 5.20 (table 7) | " in text
    assert "Paper: A. Author, 1999. Ours: " in text
    assert "not the claims. Made here. Seen once." in text
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [run["config"]["model"] for run in kept["runs"]] == ["cnn-small", "no-routing"]
    assert kept["environment"]["versions"]["torch"]
    assert kept["lines"][0]["mean"] == pytest.approx(kept["runs"][0]["measures"][TEST_ERROR])
    with Image.open(tmp_path / "figure.png") as picture:
        assert picture.size[0] > 1000
    assert main([*command, "--quick", "--full"]) == 2
    assert main([*command, "--quick", "--only", "third"]) == 2
    assert "no row of made contains 'third'; there are A & b; no routing" in capsys.readouterr().err
    assert main([*command[:2], "--out", str(tmp_path / "new")]) == 0
    assert "torchcaps reproduce made --quick: digits, a second" in capsys.readouterr().out


def test_an_interrupt_says_how_to_go_on(noise, tmp_path, monkeypatch, capsys):
    def interrupt(config, folder, on_event):
        raise Interrupted

    def rows(scale, data):
        return [replace(row, run=interrupt) for row in make_rows(scale, data)]

    stopping = replace(EXPERIMENT, rows=rows)
    monkeypatch.setattr("torchcaps.experiments.find_experiment", lambda name: stopping)
    assert main(["reproduce", "made", "--quick", "--data", str(noise), "--out", str(tmp_path)]) == 130
    assert "the same command goes on where it stopped" in capsys.readouterr().out


def test_the_list_of_experiments(capsys):
    assert main(["reproduce"]) == 0
    told = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in told
        experiment = find_experiment(name)
        assert experiment.name == name
        assert set(experiment.data) == set(experiment.takes) == {"quick", "full"}
    assert main(["reproduce", "hinton2081"]) == 2
    assert "did you mean 'hinton2018'?" in capsys.readouterr().err
