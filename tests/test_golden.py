"""A change of shape does not move a loss or an answer by a bit."""

import json

import numpy as np
import pytest

from golden.make import FOLDER, STEPS, WAYS, machine, run
from torchcaps.native import library

FIGURES = json.loads((FOLDER / "figures.json").read_text())
FEW = 3  # steps that are always run; the reference takes minutes for all
ELSEWHERE = 5e-3  # relative, on machines that round otherwise: 20 steps from the same start


@pytest.mark.parametrize("steps", [FEW, pytest.param(STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_losses_and_answers_are_those_of_before(way, steps):
    if way != "reference" and (reason := library.why_not()):
        pytest.skip(reason)
    if way in library.INSTRUCTION_SETS and not library.cpu_runs(way):
        pytest.skip(f"this processor does not run {way}")
    found, expected = run(way, steps), FIGURES[way]
    expected = expected | {"losses": {name: losses[:steps] for name, losses in expected["losses"].items()}}
    assert {kind: list(rows) for kind, rows in found.items()} == {kind: list(rows) for kind, rows in expected.items()}
    if machine() == FIGURES["machine"]:
        assert found == expected
    for kind, rows in expected.items():
        for name, row in rows.items():
            np.testing.assert_allclose(found[kind][name], row, rtol=ELSEWHERE, atol=ELSEWHERE, err_msg=name)
