"""The cut of the work depends on the problem alone: results are the same bits whatever the number of threads."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from torchcaps.benchmark.cases import Case
from torchcaps.benchmark.workload import Workload
from torchcaps.native import library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

DENSE = Case(name="dense", layer="dense", batch_size=70, num_children=150, num_parents=5, in_size=8, out_size=16)
CONV = Case(
    name="conv", layer="conv", batch_size=11, spatial=(9, 9), num_children=8, num_parents=6, kernel_size=3,
    in_size=8, out_size=8,
)  # fmt: skip
EM = replace(CONV, name="em", pose="matrix", routing="em", in_size=16, out_size=16)
GLOBAL = {"num_iterations": 3, "competition": "global"}
CASES = [
    DENSE,  # slots in pieces
    replace(DENSE, name="few", batch_size=2),
    replace(DENSE, name="em dense", pose="matrix", routing="em", in_size=16, batch_size=9),
    CONV,  # blocks of examples
    replace(CONV, name="one example", batch_size=1),
    replace(CONV, name="by child", options=GLOBAL),
    replace(CONV, name="by child, few", options=GLOBAL, batch_size=3),
    replace(CONV, name="max-min", routing="max_min"),
    replace(DENSE, name="attention", routing="attention"),
    replace(DENSE, name="self-attention", routing="self_attention"),
    replace(CONV, name="text", layer="class", num_children=4, spatial=(90,), batch_size=64),
    EM,
    replace(EM, name="em, few", batch_size=3),
    replace(EM, name="em, one", batch_size=1, options=GLOBAL),
    replace(EM, name="variational", routing="vb", batch_size=2),
    replace(EM, name="em class", layer="class", batch_size=20),
]


def bits_of(case: Case) -> list[torch.Tensor]:
    workload = Workload(case)
    parents, gradients = workload.values_and_gradients("fused")
    return [part.detach() for part in (*parents, *gradients) if part is not None]


def differing(case: Case, numbers: range) -> list[int]:
    """The numbers of threads with which a result has other bits than with one."""
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(1)
        expected = bits_of(case)
        for number in numbers:
            torch.set_num_threads(number)
            if not all(torch.equal(x, y) for x, y in zip(bits_of(case), expected, strict=True)):
                found.append(number)
    finally:
        torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_bits_with_any_number_of_threads(case):
    assert differing(case, range(2, 11)) == []


@pytest.mark.parametrize("helpers", ["own", "openmp"])
def test_same_bits_whoever_helps(helpers):
    """In a process of its own: who helps is asked once. A forked child, which has no helpers, gives the same, too."""
    finished = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | {"TORCHCAPS_HELPERS": helpers, "TORCHCAPS_POISON": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]


def main() -> None:
    for case in CASES:
        assert differing(case, range(2, 6)) == [], case.name
    torch.set_num_threads(2)
    expected = bits_of(EM)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # or its own OpenMP waits for threads that are not there
        same = all(torch.equal(x, y) for x, y in zip(bits_of(EM), expected, strict=True))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the forked child"


if __name__ == "__main__":
    main()
