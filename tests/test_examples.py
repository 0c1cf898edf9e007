"""The examples run as scripts and learn; the routing of the user's own works everywhere the package's do."""

import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.layers import KINDS, POSES, make_children, scalar
from torchcaps import nn
from torchcaps.capsules import Capsules
from torchcaps.cli import main
from torchcaps.predictor import load
from torchcaps.routing import plan, registry, routing_names, use_backend

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def own_entries(monkeypatch):
    """What an example registers is forgotten after its test."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example as `python examples/name.py arguments` would and return what it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def run_example(name: str, *arguments: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_new_routing_learns_and_finds_the_parts(run):
    out = run("new_routing", "--steps", "60")
    assert float(re.findall(r"accuracy (\S+)", out)[-1]) > 0.8
    shares = [
        (float(part), float(clutter)) for part, clutter in re.findall(r"give (\S+) to their class, clutter (\S+)", out)
    ]
    assert len(shares) == 3
    assert shares[-1][0] > shares[0][0] + 0.05
    assert shares[-1][0] > shares[-1][1] + 0.05


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_capsule_head_on_cnn_learns(run, routing):
    out = run("capsule_head_on_cnn", "--routing", routing, "--steps", "150")
    assert float(re.search(r"accuracy (\S+) on new images", out)[1]) > 0.7


def test_the_users_routing_fits_into_another_example(run):
    assert "new_routing:CosineRouting routing" in run(
        "capsule_head_on_cnn", "--routing", "new_routing:CosineRouting", "--steps", "2"
    )


def test_the_users_routing_trains_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(EXAMPLES)  # where the file lies
    generator = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (generator.integers(0, 100, (40, 19, 19)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    options = ["--routing", "new_routing:CosineRouting", "--epochs", "5", "--batch-size", "8"]
    run = tmp_path / "run"
    assert main(["train", "--data", str(tmp_path / "data.npz"), "--out", str(run), *options]) == 0
    assert main(["evaluate", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["accuracy"] >= 0.9
    assert type(load(run).model.class_capsules.routing).__name__ == "CosineRouting"


def test_every_routing_on_one_set_of_votes(run, tmp_path):
    out = run("route_votes", "--out", str(tmp_path / "couplings.png"))
    shown = dict(re.findall(r"│ (\w+) +│ \d +│ (\S+)", out))
    assert set(shown) >= {name for name in routing_names() if name != "self"}
    assert float(shown["uniform"]) < 0.5 < min(float(share) for name, share in shown.items() if name != "uniform")
    assert (tmp_path / "couplings.png").stat().st_size > 10_000


def test_kinds_of_routing_differ_as_told(run):
    out = run("kinds_of_routing")
    assert "SelfRouting decides by the poses of the children" in out
    assert "HeinsenRouting, full transformations: beta_use of (12, 4)" in out
    assert "SelfAttentionRouting, shared transformations: bias of (1, 4)" in out
    bounds = [float(bound) for bound in re.search(r"bound of the evidence: (.+)", out)[1].split(" <= ")]
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0] + 1
    sums = re.findall(r"(\S+): couplings of a child sum to (\S+) ... (\S+)", out)
    assert sums[0] == ("dynamic", "1.00", "1.00")
    assert float(sums[1][2]) > 1


def test_token_pooling_learns_and_ignores_padding(run):
    out = run("token_pooling", "--steps", "120")
    accuracies, changes = re.findall(r"accuracy (\S+)", out), re.findall(r"changes (\S+)", out)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 0.6
    assert max(map(float, changes)) < 1e-4


def test_several_interests_find_more_of_what_people_like(run):
    out = run("multi_interest", "--epochs", "3")
    one, several = map(float, re.findall(r"(\S+) of the groups", out))
    assert several > one + 0.1
    assert len(re.findall(r"interest \d of person-0: item-", out)) >= 1
    assert "recommended: item-" in out


@pytest.fixture
def own_layer(monkeypatch):
    """A layer of any kind with the routing of examples/new_routing.py, by import path."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def make(kind, pose="vector", **options):
        layer_class, (num_in, num_out), geometry, _ = KINDS[kind]
        sizes = (3, 5) if pose == "vector" else (4, 4)
        routing = nn.create_routing("new_routing:CosineRouting", **options)
        return layer_class(num_in, num_out, *sizes, routing=routing, pose=pose, dtype=torch.float64, **geometry)

    return make


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_users_routing_works_in_every_layer_with_trace_and_chunks(own_layer, kind, pose, one_example_chunks):
    layer, children = own_layer(kind, pose, num_iterations=3), make_children(kind, batch_size=3, pose=pose)
    results, gradients = [], []
    for backend in ("reference", "chunked"):
        with use_backend(backend):
            results.append(layer.route(children, return_trace=True))
        gradients.append(torch.autograd.grad(scalar(results[-1].capsules), layer.weight)[0])
    assert gradients[0].any()
    torch.testing.assert_close(results[1].capsules, results[0].capsules, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)
    assert len(results[0].trace) == len(results[1].trace) == 3
    torch.testing.assert_close(results[1].trace[-1].coupling, results[0].coupling)


@pytest.mark.parametrize("competition", ["window", "global"])
def test_the_users_routing_knows_masks_and_competition(own_layer, competition):
    layer, children = own_layer("conv1d", competition=competition), make_children("conv1d")
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    alone = layer(Capsules(children.poses[:1, :4], children.activations[:1, :4]))
    padded = layer(Capsules(children.poses.masked_fill(~mask[..., None, None], torch.nan), children.activations), mask)
    torch.testing.assert_close(padded.poses[:1, :2], alone.poses)


def test_the_users_routing_explains_itself_and_refuses_what_it_does_not_know(own_layer):
    layer, children = own_layer("dense"), make_children("dense")
    planned = plan(layer.routing, layer.votes(children))
    assert planned.algorithm == "cosine"
    assert planned.chosen == "chunked"
    assert planned.reasons["fused"] == "cosine routing has no kernel"
    with pytest.raises(TypeError, match="CosineRouting has no option 'num_iteration'; did you mean"):
        own_layer("dense", num_iteration=2)
