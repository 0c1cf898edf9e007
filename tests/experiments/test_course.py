"""Networks compared when they are equally good: affine digits and novel viewpoints."""

import json

import numpy as np
import pytest
from PIL import Image

from support.digit_files import write_digits
from support.norb_files import write_pairs
from torchcaps.cli import main
from torchcaps.experiments import affine, course, find_experiment, viewpoints
from torchcaps.experiments.course import COURSE, compare_courses, read_course, stopped_when_equal, when_equal
from torchcaps.experiments.harness import run_rows
from torchcaps.training import Interrupted


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder)
    return folder


def test_a_network_is_stopped_at_the_first_look_that_is_good_enough():
    reference = [{"step": 1, "validation": 9.0}, {"step": 2, "validation": 4.0}]
    looks = [{"step": 1, "validation": 8.0}, {"step": 2, "validation": 4.0}, {"step": 3, "validation": 3.0}]
    assert stopped_when_equal(looks, reference)["step"] == 2
    assert stopped_when_equal(looks[:1], reference) is None


def test_the_better_network_is_taken_when_it_was_as_good_as_the_other(tmp_path):
    def write(row, *errors):
        looks = [{"step": step, "validation": error, "near": 2 * error, "far": 3 * error} for step, error in errors]
        (tmp_path / row / "seed-0").mkdir(parents=True)
        (tmp_path / row / "seed-0" / COURSE).write_text(json.dumps({"looks": looks}))

    write("cnn", (1, 9.0), (2, 6.0), (3, 4.0))
    write("worse", (1, 12.0), (2, 7.0))
    write("better", (1, 3.0), (2, 2.0))
    names = {"near": "near, %", "far": "far, %"}
    rows = ["CNN", "worse", "better"]
    cnn, worse, better = (compare_courses(tmp_path / row.lower() / "seed-0", rows, names) for row in rows)
    assert cnn == {"near, %": 8.0, "far, %": 12.0}
    equal = {"near of the CNN when as good as this, %": 12.0, "far of the CNN when as good as this, %": 18.0}
    assert worse == {"near, %": 14.0, "far, %": 21.0} | equal
    equal = {"near when as good as the CNN, %": 6.0, "far when as good as the CNN, %": 9.0}
    assert better == {"near, %": 4.0, "far, %": 6.0} | equal


def test_placed_and_distorted_digits_share_nothing_with_training(digits):
    config = find_experiment("affine").choose_rows("quick", str(digits))[0].config
    parts = affine.placed_digits(config)
    assert parts.data.train.images.shape[1:] == parts.tests["clean"].images.shape[1:] == (40, 40)
    assert len(parts.data.train) + len(parts.validation) == 60
    np.testing.assert_array_equal(parts.tests["clean"].labels, parts.tests["affine"].labels)
    ink = [part.images.astype(float).sum((1, 2)) for part in parts.tests.values()]
    assert np.abs(ink[0] - ink[1]).max() > 0
    first, second = (parts.data.train.read([0], epoch)[0] for epoch in (0, 1))
    assert (first != second).any()


def test_viewpoints_are_those_of_the_protocol(pairs):
    for factor in viewpoints.PROTOCOLS:
        row = find_experiment("viewpoints").choose_rows("quick", str(pairs), [f"{factor}: no routing"])[0]
        parts = viewpoints.view_parts(factor, row.config)
        train, familiar, novel = (set(part.factors[factor]) for part in (parts.data.train, *parts.tests.values()))
        assert train >= familiar
        assert not train & novel
        held_out = {tuple(pair) for pair in zip(parts.validation.labels, parts.validation.factors["instance"])}
        seen = {tuple(pair) for pair in zip(parts.data.train.labels, parts.data.train.factors["instance"])}
        assert not held_out & seen


def test_affine(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "NUM_LOOKS", 3)
    command = ["reproduce", "affine", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "uniform"]) == 2  # the CNN comes first
    assert main([*command, "--only", "CNN, small", "uniform"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    reference, shared = (run["measures"] for run in kept["runs"])
    assert set(reference) == {affine.CLEAN, affine.AFFINE}
    assert set(reference) <= set(shared)
    looks = read_course(tmp_path / "cnn-small" / "seed-0")
    assert len(looks) == 3
    assert reference[affine.AFFINE] == looks[-1]["affine"]
    reached = stopped_when_equal(read_course(tmp_path / "uniform" / "seed-0"), looks)
    assert shared.get(when_equal(affine.AFFINE)) == (reached and reached["affine"])
    with Image.open(tmp_path / "affine-seed-0.png") as picture:
        assert min(picture.size) > 400


def test_an_interrupted_course_ends_as_one_that_was_not(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "NUM_LOOKS", 2)
    rows = find_experiment("affine").choose_rows("quick", str(digits), ["CNN, small"])
    run_rows(rows, tmp_path / "whole")

    def stop(event):
        if event.progress.step == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_rows(rows, tmp_path / "cut", on_event=stop)
    run_rows(rows, tmp_path / "cut")
    whole, cut = (read_course(tmp_path / name / "cnn-small" / "seed-0") for name in ("whole", "cut"))
    assert whole == cut
    assert [look["step"] for look in whole] == [2, 4]


def test_viewpoints(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "NUM_LOOKS", 2)
    command = ["reproduce", "viewpoints", "--quick", "--data", str(pairs), "--out", str(tmp_path)]
    assert main([*command, "--only", "elevation: CNN", "elevation: no routing"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    assert {viewpoints.FAMILIAR, viewpoints.NOVEL} <= set(kept["runs"][0]["measures"])
    assert (tmp_path / "novel-elevation-seed-0.png").exists()
    assert (
        "| elevation: CNN, 4.2 M | novel viewpoints, error, % | 17.80 (table 2) |"
        in (tmp_path / "table.md").read_text()
    )


def test_references_exist():
    assert find_experiment("affine").choose_rows("full")[0].name == "CNN, small"
    for factor in viewpoints.PROTOCOLS:
        assert find_experiment("viewpoints").choose_rows("full", only=[factor])[0].name == f"{factor}: {viewpoints.CNN}"
