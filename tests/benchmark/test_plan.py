"""Plans of networks: counted by hand where that is possible, measured where it fits here."""

import subprocess
import sys

import pytest

from torchcaps.benchmark.plan import plan_network
from torchcaps.cli import main

MEASURE = """
import sys, torch
from torchcaps.benchmark.memory import peak_bytes
from torchcaps.models import create_model
from torchcaps.routing import use_backend
name, backend, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model = create_model(name, image_shape=(3, 32, 32), num_classes=10)
def step(num):
    with use_backend(backend):
        model(torch.rand(num, 3, 32, 32)).scores.sum().backward()
step(2)
print(peak_bytes(lambda: step(batch)))
"""


def test_counts_of_a_network_are_those_by_hand():
    """The second convolution of CapsNet has 6 x 6 x 256 x 256 x 81 products, its routing 3 sums and 2 agreements."""
    plan = plan_network("capsnet", image_shape=(1, 28, 28), num_classes=10, reconstruct=False)
    assert plan.parameters == 8_215_568 - 1_411_344  # those of the decoder
    entries = 1152 * 10 * 16
    assert plan.routing_flops == entries * (2 * 8 + 10)
    convolutions = 2 * (20 * 20 * 256 * 81 + 36 * 256 * 256 * 81)
    assert plan.flops == convolutions + plan.routing_flops
    assert plan.formed == 4 * entries
    assert plan.kept["chunked"] < plan.kept["fused"] < plan.kept["reference"]
    assert plan.kept["reference"] > plan.formed


def test_time_at_best_is_that_of_the_narrower_way():
    plan = plan_network("cnn-small", image_shape=(1, 28, 28), num_classes=10)
    assert plan.step_seconds(8, "fused", 1e9, 1e30) == pytest.approx(3 * 8 * plan.flops / 1e9)
    moved = 4 * (8 * plan.kept["fused"] + 4 * plan.parameters)
    assert plan.step_seconds(8, "fused", 1e30, 1e9) == pytest.approx(moved / 1e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "batch"),
    [
        ("cnn-small", "reference", 128),
        ("matrix-capsnet-small", "reference", 4),
        ("matrix-capsnet-small", "fused", 64),
        ("backbone-capsules", "fused", 64),
        ("capsnet-small", "chunked", 512),
    ],
)
def test_memory_is_within_a_factor_of_two_of_what_is_measured(name, backend, batch):
    code = [sys.executable, "-W", "error", "-c", MEASURE, name, backend, str(batch)]
    run = subprocess.run(code, capture_output=True, text=True)
    if backend == "fused" and "has no" in run.stderr:
        pytest.skip("needs the compiled kernels")
    assert run.returncode == 0, run.stderr
    if run.stdout.strip() == "None":
        pytest.skip("this system does not tell how much memory a call takes")
    plan = plan_network(name, image_shape=(3, 32, 32), num_classes=10)
    planned = batch * plan.kept[backend]
    assert 0.5 < planned / int(run.stdout) < 2


def test_the_command_tells_a_network_of_imagenet_in_a_table(capsys):
    command = ["benchmark", "--plan", "matrix-capsnet", "--image-size", "224", "--classes", "1000"]
    assert main([*command, "--gpu-tflops", "19.5", "--gpu-gbps", "1555"]) == 0
    shown = capsys.readouterr().out
    assert "831,040 parameters" in shown
    assert "votes, if formed" in shown
    for backend in ("fused", "chunked", "reference"):
        assert backend in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plan", "mind"], "takes users"),
        (["--plan", "capsnet", "--batch-size", "0"], "batch_size"),
        (["--image-size", "224"], "--plan"),
        (["--plan", "capsnet", "--option", "depth=3"], "an option of capsnet"),
    ],
)
def test_what_a_plan_cannot_be(options, message, capsys):
    assert main(["benchmark", *options]) != 0
    assert message in capsys.readouterr().err
