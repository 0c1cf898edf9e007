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
def driver(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("threads")
    program, empty = folder / "threads", folder / "empty.cpp"
    empty.write_text("int main() {}")
    if subprocess.run([compiler, "-fsanitize=thread", empty, "-o", program], capture_output=True).returncode:
        pytest.skip("g++ comes without ThreadSanitizer")
    objects = []
    for source in SOURCES:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([compiler, *FLAGS, "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([compiler, "-fsanitize=thread", *objects, "-o", program], check=True)
    return program


def run(driver: Path, *arguments: str, plant: str = "") -> subprocess.CompletedProcess:
    # its shadow memory needs addresses that are not shuffled
    shuffled = shutil.which("setarch")
    command = [shuffled, "--addr-no-randomize", driver] if shuffled else [driver]
    options = {"TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}", "TORCHCAPS_PLANT": plant, "TORCHCAPS_POISON": "1"}
    return subprocess.run([*command, *arguments], env=os.environ | options, capture_output=True, text=True)


@pytest.mark.slow
def test_no_races(driver):
    finished = run(driver)
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert "every result is right" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "plant"), [((), "barrier"), (("shared",), "")], ids=["barrier", "results"])
def test_planted_races_are_found(driver, arguments, plant):
    """Barriers that do not wait; callers that write to the same memory."""
    finished = run(driver, *arguments, plant=plant)
    assert finished.returncode == RACE, finished.stderr[-5000:]
    assert "WARNING: ThreadSanitizer: data race" in finished.stderr
    assert "csrc/" in finished.stderr


@pytest.mark.slow
def test_fewer_workers_than_asked_for(driver):
    finished = run(driver, "alone", plant="fewer")
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
    environment = os.environ | {"OMP_THREAD_LIMIT": "2", "TORCHCAPS_POISON": "1"}
    finished = subprocess.run([sys.executable, "-c", LIMITED], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
