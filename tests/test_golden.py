"""A change of shape does not move a loss or an answer by a bit."""

import json

import numpy as np
import pytest

from golden.make import FOLDER, WAYS, machine, run
from torchcaps.native import library

FIGURES = json.loads((FOLDER / "figures.json").read_text())
ELSEWHERE = 5e-3  # relative, on machines that round otherwise: 20 steps from the same start


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_answers_are_those_of_before(way):
    if way != "reference" and (reason := library.why_not()):
        pytest.skip(reason)
    if way == "avx2" and not library.open_library("portable").torchcaps_cpu_has_avx2():
        pytest.skip("this processor has no AVX2")
    found, expected = run(way), FIGURES[way]
    assert {kind: list(rows) for kind, rows in found.items()} == {kind: list(rows) for kind, rows in expected.items()}
    if machine() == FIGURES["machine"]:
        assert found == expected
    for kind, rows in expected.items():
        for name, row in rows.items():
            np.testing.assert_allclose(found[kind][name], row, rtol=ELSEWHERE, atol=ELSEWHERE, err_msg=name)
