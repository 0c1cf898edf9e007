"""Attacks as an experiment: all outcomes are kept, the table shows some, pictures the curves."""

import json

import pytest

from support.digit_files import write_digits
from support.norb_files import write_pairs
from torchcaps.attacks import METHODS, Method, Outcome
from torchcaps.cli import main
from torchcaps.experiments import attacks, find_experiment
from torchcaps.experiments.harness import TEST_ERROR, run_rows


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("digits") / "digits.npz")


def test_figures_of_the_table():
    gradients = {
        f"{name}, {loss}": {"zero_share": share, "zero_image_share": 0.0, "magnitude": size}
        for name, share, size in (("this", 0.25, 0.01), ("source", 0.0, 1.0))
        for loss in ("own", "cross_entropy")
    }
    outcomes = [Outcome(0.0, 1.0, 0.0), Outcome(0.1, 0.75, 0.25)]
    kept = {
        "white_box": {"fgsm": outcomes},
        "black_box": {"bim": outcomes},
        "targeted": outcomes[1:],
        "gradients": gradients,
    }
    found = attacks.figures(kept, (0.1, 0.2), is_source=False)
    assert found == {
        "error under fgsm, epsilon 0.1, %": 25.0,
        "success of bim towards each class, epsilon 0.1, %": 25.0,
        "error under bim made on the small CNN, epsilon 0.1, %": 25.0,
        attacks.ZERO_OWN: 25.0,
        attacks.ZERO_CROSS: 25.0,
        attacks.ORDERS: pytest.approx(2.0),
    }
    assert set(found) - set(attacks.figures(kept, (0.1, 0.2), is_source=True)) == {
        "error under bim made on the small CNN, epsilon 0.1, %",
        attacks.ORDERS,
    }


def test_quick(digits, tmp_path, monkeypatch):
    for name in ("bim", "pgd"):  # two steps are enough to see that all outcomes are kept
        monkeypatch.setitem(METHODS, name, Method(num_steps=2, relative_step=0.5, random_start=name == "pgd"))
    monkeypatch.setitem(attacks.IN_TABLE, "digits", (0.1,))
    monkeypatch.setitem(attacks.NUM_IMAGES, "quick", (6, 6, 3))
    command = ["reproduce", "attacks", "--quick", "--data", str(digits), "--out", str(tmp_path)]
    assert main([*command, "--only", "digits: uniform"]) == 2  # the CNN whose images are shown to others comes first
    assert main([*command, "--only", "digits: CNN, small", "digits: uniform"]) == 0
    kept = json.loads((tmp_path / "results.json").read_text())
    source, capsules = (run["measures"] for run in kept["runs"])
    assert "error under pgd, epsilon 0.1, %" in source
    assert "error under fgsm made on the small CNN, epsilon 0.1, %" in capsules
    outcomes = json.loads((tmp_path / "digits-uniform" / "seed-0" / "attack.json").read_text())
    clean = outcomes["white_box"]["fgsm"][0]
    assert clean == outcomes["black_box"]["bim"][0] == outcomes["white_box"]["pgd"][0]
    assert outcomes["images"] == 6
    for name in ("white-box-fgsm", "white-box-pgd", "black-box-bim"):
        assert (tmp_path / f"digits-{name}-seed-0.png").exists()


@pytest.mark.slow
def test_toys(tmp_path, monkeypatch, digits):
    (tmp_path / "pairs").mkdir()
    write_pairs(tmp_path / "pairs")
    monkeypatch.setitem(attacks.NUM_IMAGES, "quick", (3, 3, 2))
    experiment = find_experiment("attacks")
    rows = experiment.choose_rows("quick", f"{digits}, {tmp_path / 'pairs'}", ["toys: CNN, small", "toys: EM, t = 2"])
    _, capsules = run_rows(rows, tmp_path / "out")
    assert attacks.ZERO_OWN in capsules.measures
    assert rows[1].published == {attacks.ORDERS: 2.0}
    assert rows[1].config.scaling == "standardise"


def test_a_shipped_model_is_attacked_without_training(digits, tmp_path):
    row = find_experiment("attacks").choose_rows("full", str(digits), ["as it ships"])[0]
    result = row.run(row.config, tmp_path, None)
    assert result["num_test"] == 20
    assert result["accuracy"] >= 0.95
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_baselines_stand_beside_every_routing():
    rows = find_experiment("attacks").choose_rows("full")
    for group in ("digits", "toys"):
        names = [row.name for row in rows if row.group == group]
        assert names[0] == f"{group}: {attacks.SOURCE}"
        assert any("uniform" in name for name in names)
        assert f"{group}: no routing" in names
        assert {f"{group}: {name}" for name in attacks.DRAWN[group]} <= set(names)
    assert TEST_ERROR not in rows[0].published
