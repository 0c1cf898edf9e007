"""Every routing in the same networks: rows are complete and fair, one runs, and the figure shows what was measured."""

import json

import pytest

from support.digit_files import write_digits
from torchcaps.cli import main
from torchcaps.data import load_data
from torchcaps.experiments import find_experiment, routings
from torchcaps.experiments.harness import TEST_ERROR
from torchcaps.experiments.multi_digits import BOTH_WRONG
from torchcaps.experiments.table import Line
from torchcaps.routing import find_routing, routing_names
from torchcaps.runs import new_model

GROUPS = [*routings.DIGITS["full"], routings.SIDE_BY_SIDE, routings.NORB, "texts, trec", "texts, mr"]


def full_rows():
    return find_experiment("routings").choose_rows("full")


@pytest.mark.parametrize("group", GROUPS)
def test_every_routing_has_a_row_in_every_network(group):
    rows = [row for row in full_rows() if row.group == group]
    named = {row.config.model_options.get("routing") for row in rows}
    assert named - {None} == set(routing_names())
    assert None in named  # something without routing stands beside them


@pytest.mark.parametrize("group", GROUPS)
def test_all_of_a_group_take_equally_many_steps(group):
    configs = [row.config for row in full_rows() if row.group == group]
    steps = {(c.training.epochs, c.training.batch_size, c.num_train, c.validation, c.data) for c in configs}
    assert len(steps) == 1


def test_couplings_are_changed_twice():
    for row in full_rows():
        options = row.config.model_options
        entry = find_routing(options["routing"]) if "routing" in options else None
        if entry is not None and entry.iterates:
            assert options["routing_options"]["num_iterations"] - entry.least_iterations == 2


def test_choices_do_not_see_test_digits():
    rows = [row for row in full_rows() if row.group == routings.CHOICE]
    assert len(rows) == len(routings.RATES) * len(routing_names())
    for row in rows:
        assert row.config.num_test == 0
        held_out = row.config.validation * row.config.num_train
        assert round(held_out) == 5000
        assert row.config.num_train - round(held_out) == 10_000
    assert set(routings.CHOSEN_RATES) <= set(routing_names())
    assert set(routings.CHOSEN_RATES.values()) <= set(routings.RATES)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def test_every_network_of_digits_can_be_built(digits):
    data = load_data(digits)
    for row in find_experiment("routings").choose_rows("full", str(digits)):
        if row.config.data == str(digits):
            assert new_model(row.config, data).num_classes == 10


def test_a_row_runs_and_tells_what_it_costs(digits, tmp_path, capsys):
    row = "1,000 digits: max-min"
    assert main(["reproduce", "routings", "--quick", "--data", str(digits), "--only", row, "--out", str(tmp_path)]) == 0
    assert "max-min" in capsys.readouterr().out
    lines = json.loads((tmp_path / "results.json").read_text())["lines"]
    found = {line["measured"]: line["mean"] for line in lines if line["name"] == row}
    assert 0 <= found[TEST_ERROR] <= 100
    assert 0 < found[routings.STEP] < 60
    assert found.get(routings.MEMORY, 1) > 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def line(group, name, measured, *values):
    return Line(
        group=group, name=f"{group}: {name}", measured=measured, published=None, where="", values=values,
        num_diverged=0, parameters=None, minutes=None,
    )  # fmt: skip


def test_the_figure_has_a_panel_for_each_group_and_a_mark_for_each_routing():
    lines = [
        line("1,000 digits", "EM", TEST_ERROR, 3.0, 5.0),
        line("1,000 digits", "EM", routings.STEP, 0.2, 0.2),
        line("1,000 digits", "uniform", TEST_ERROR, 7.0),
        line("1,000 digits", "uniform", routings.STEP, 0.1),
        line(routings.SIDE_BY_SIDE, "EM", TEST_ERROR, 50.0),
        line(routings.SIDE_BY_SIDE, "EM", BOTH_WRONG, 20.0),
        line(routings.SIDE_BY_SIDE, "EM", routings.STEP, 0.3),
        line(routings.NORB, "EM", TEST_ERROR),  # not run yet
    ]
    figure = routings.draw(lines, "title", "caption")
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["1,000 digits", routings.SIDE_BY_SIDE]
    first = sorted((float(bars[0].get_xdata()[0]), float(bars[0].get_ydata()[0])) for bars in panels[0].containers)
    assert first == [(100.0, 93.0), (200.0, 96.0)]
    (second,) = panels[1].containers
    assert float(second[0].get_ydata()[0]) == 80.0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["EM", "uniform"]
