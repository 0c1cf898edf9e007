"""No races: the kernels, called from several threads at once, under ThreadSanitizer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchcaps.native import library

HERE = Path(__file__).parent
SOURCES = [*sorted((HERE.parents[1] / "csrc").glob("*.cpp")), HERE / "openmp.cpp", HERE / "threads.cpp"]
# GNU's compiler alone: openmp.cpp stands in for its runtime
FLAGS = ["-std=c++17", "-O1", "-g", "-fopenmp", "-fsanitize=thread", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-tsan"]
RACE = 66  # what ThreadSanitizer ends with


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    found, program = shutil.which("g++"), tmp_path_factory.mktemp("empty") / "empty"
    if found is None:
        pytest.skip("no g++ here")
    empty = program.with_suffix(".cpp")
    empty.write_text("int main() {}")
    if subprocess.run([found, "-fsanitize=thread", empty, "-o", program], capture_output=True).returncode:
        pytest.skip("g++ comes without ThreadSanitizer")
    return found


@pytest.fixture(scope="module")
def driver(compiler, tmp_path_factory):
    return build(compiler, SOURCES, tmp_path_factory.mktemp("threads"))


@pytest.fixture(scope="module")
def planted(compiler, tmp_path_factory):
    sources = [HERE.parents[1] / "csrc" / "crew.cpp", HERE / "openmp.cpp", HERE / "planted.cpp"]
    return build(compiler, sources, tmp_path_factory.mktemp("planted"))


def build(compiler: str, sources: list[Path], folder: Path) -> Path:
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([compiler, *FLAGS, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, "-fsanitize=thread", *objects, "-o", folder / "program"], check=True)
    return folder / "program"


def run(driver: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    # its shadow memory needs addresses that are not shuffled
    shuffled = shutil.which("setarch")
    command = [shuffled, "--addr-no-randomize", driver] if shuffled else [driver]
    options = {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}", "TORCHCAPS_POISON": "1"}
    return subprocess.run([*command, *arguments], env=os.environ | options | variables, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("helpers", ["openmp", "own"])
def test_no_races(driver, helpers):
    finished = run(driver, TORCHCAPS_HELPERS=helpers)
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert "every result is right" in finished.stdout


@pytest.mark.slow
def test_a_planted_race_is_found(driver):
    """Callers that write to the same memory."""
    assert_race(run(driver, "shared"), "csrc/")


@pytest.mark.slow
@pytest.mark.parametrize("helpers", ["openmp", "own"])
def test_a_crew_waits_and_no_more(planted, helpers):
    """Blocks that write to the same memory are found; with memory of their own, read when all are done, nothing is."""
    assert_race(run(planted, TORCHCAPS_HELPERS=helpers), "planted.cpp")
    finished = run(planted, "apart", TORCHCAPS_HELPERS=helpers)
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert int(finished.stdout) == sum(64 * passes for passes in range(1, 101))


def assert_race(finished: subprocess.CompletedProcess, where: str) -> None:
    assert finished.returncode == RACE, finished.stderr[-5000:]
    assert "WARNING: ThreadSanitizer: data race" in finished.stderr
    assert where in finished.stderr


@pytest.mark.slow
def test_fewer_workers_than_asked_for(driver):
    finished = run(driver, "alone", TORCHCAPS_PLANT="fewer", TORCHCAPS_HELPERS="openmp")
    assert finished.returncode == 0, finished.stderr[-5000:]


LIMITED = """
import torch
from torchcaps.routing import dynamic_routing
from torchcaps.votes import DenseVotes
torch.set_num_threads(4)
torch.manual_seed(0)
poses, weight = torch.randn(150, 9, 4).double(), torch.randn(3, 4, 6).double().requires_grad_()
votes = DenseVotes(poses, weight, sharing="shared")
expected, found = (
    torch.autograd.grad(dynamic_routing(votes, backend=name).capsules.poses.sum(), weight)[0]
    for name in ("reference", "fused")
)
torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
"""


@pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))
def test_a_limit_of_openmp_is_respected():
    """Four threads are asked for and two are given: nobody adds up what the others never wrote."""
    environment = os.environ | {"OMP_THREAD_LIMIT": "2", "TORCHCAPS_HELPERS": "openmp", "TORCHCAPS_POISON": "1"}
    finished = subprocess.run([sys.executable, "-c", LIMITED], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
