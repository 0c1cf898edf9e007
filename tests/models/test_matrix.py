"""Matrix capsule networks: each routing learns with any number of iterations; that of the paper stays what it is."""

import json

import numpy as np
import pytest
import torch

from torchcaps.data.load import EMBEDDED
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import Model, create_model
from torchcaps.models.matrix import SOFT
from torchcaps.models.saving import CONFIG_FILE
from torchcaps.nn import CapsuleNorm, EMRouting
from torchcaps.routing import find_routing, routing_names
from torchcaps.runs import RunConfig
from torchcaps.training import TrainingConfig
from torchcaps.training.objective import make_objective

ITERATED = [name for name in routing_names() if find_routing(name).iterates]
SWEEP = [(routing, t) for routing in ITERATED for t in (1, 2, 3, 5)]
SWEEP.remove(("heinsen", 1))  # before the first E-step its activations do not depend on votes
SWEEP += [(routing, None) for routing in routing_names() if routing not in ITERATED]


@pytest.fixture(scope="module")
def toys() -> tuple[torch.Tensor, torch.Tensor]:
    """The embedded pictures, small, and what they show."""
    with np.load(EMBEDDED / "toys.npz") as file:
        prepare = Preprocessing(image_size=(24, 24), channels=2, scaling="standardise")
        return prepare(file["images"]), torch.from_numpy(file["labels"])


def new_model(size: int = 24, **options):
    torch.manual_seed(0)
    options = {"channels": 16, "types": (4, 8, 8)} | options
    return create_model("matrix-capsnet-small", image_shape=(2, size, size), num_classes=5, **options)


def steps_to_learn(model: Model, images: torch.Tensor, labels: torch.Tensor, most: int) -> int:
    """Optimiser steps until five batches in a row are known by heart, noise and all."""
    objective, in_a_row = make_objective(model, TrainingConfig()), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(most):
        output = model(images + 0.1 * torch.randn_like(images))
        optimizer.zero_grad()
        objective(output, images, labels, 0.5).mean().backward()
        optimizer.step()
        in_a_row = in_a_row + 1 if (output.scores.argmax(1) == labels).all() else 0
        if in_a_row == 5:
            return step + 1
    return most


@pytest.mark.parametrize(("routing", "num_iterations"), SWEEP)
def test_every_routing_learns_with_any_number_of_iterations(routing, num_iterations, toys):
    options = {} if num_iterations is None else {"num_iterations": num_iterations}
    assert steps_to_learn(new_model(routing=routing, routing_options=options), *toys, most=40) < 40


def test_hard_couplings_do_not_learn(toys):
    """Five iterations that decide from the first step on: what the soft start is for."""
    hard = new_model(routing="entropy", routing_options={"num_iterations": 5, "alpha": 0.1})
    assert steps_to_learn(hard, *toys, most=40) == 40


@pytest.mark.parametrize("norm", ["batch", "example"])
def test_three_iterations_learn_with_either_norm(norm, toys):
    model = new_model(norm=norm, routing_options={"num_iterations": 3})
    assert model.primary.norm.statistics == model.conv1.norm.statistics == model.conv2.norm.statistics == norm
    assert model.class_capsules.norm.statistics == "batch"
    assert steps_to_learn(model, *toys, most=100) < 60


@pytest.mark.parametrize("norm", ["batch", "example"])
def test_one_image_at_a_time_learns(norm, toys):
    images, labels = toys
    model = new_model(norm=norm)
    objective, right = make_objective(model, TrainingConfig()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for one in torch.randint(len(images), (200, 1)):
        output = model(images[one])
        optimizer.zero_grad()
        objective(output, images[one], labels[one], 0.5).mean().backward()
        optimizer.step()
        right.append(bool(output.scores.argmax(1) == labels[one]))
    assert np.mean(right[-50:]) > 0.8


def test_options_take_the_place_of_the_variant():
    model = new_model()
    assert isinstance(model.primary.norm, CapsuleNorm)
    assert model.default_loss == "softmax_cross_entropy"
    assert model.conv1.routing.options["inverse_temperature"] == 1 / 16
    assert (model.conv1.start, model.class_capsules.coordinates) == ("small", 0.1)
    saved = model.config()["arguments"]  # the recipe is, or a folder would follow what a later version takes for usual
    assert saved["routing_options"] == SOFT.routing_options["em"]
    assert saved["routing_options"].items() <= model.conv1.routing.options.items()
    assert (saved["norm"], saved["start"], saved["coordinates"], saved["batch_norm"]) == ("batch", "small", 0.1, True)
    at_the_end = new_model(routing_options={"num_iterations": 1}, class_routing_options={"num_iterations": 3})
    layers = (at_the_end.conv1, at_the_end.conv2, at_the_end.class_capsules)
    assert [layer.routing.options["num_iterations"] for layer in layers] == [1, 1, 3]
    paper = new_model(variant="paper")
    assert paper.primary.norm is None
    assert paper.default_loss == "spread"
    assert paper.conv1.routing.options == EMRouting.defaults()
    assert (paper.conv1.start, paper.class_capsules.coordinates) == (None, True)
    mixed = new_model(norm="none", start="identity", coordinates=False, routing_options={"eps_var": 1e-3})
    assert mixed.conv2.norm is None
    assert (mixed.conv2.start, mixed.class_capsules.coordinates) == ("identity", False)
    assert mixed.conv2.routing.options["eps_var"] == 1e-3
    assert mixed.conv2.routing.options["activation"] == "entropy"
    with pytest.raises(ValueError, match="variant must be one of 'soft', 'paper', got 'papers'; did you mean"):
        new_model(variant="papers")


def test_a_folder_without_variant_is_the_network_of_the_paper(tmp_path):
    model = new_model(variant="paper").eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    for name in ("variant", "norm", "start"):  # as older versions wrote it
        del config["arguments"][name]
    config["arguments"] |= {"coordinates": True, "batch_norm": False}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    images = torch.randn(3, 2, 24, 24)
    with torch.no_grad():
        ours, theirs = Model.from_pretrained(tmp_path)(images), model(images)
    assert torch.equal(ours.scores, theirs.scores)
    assert torch.equal(ours.poses, theirs.poses)


def test_a_run_names_its_variant_and_an_old_one_is_that_of_the_paper(tmp_path):
    config = RunConfig(model="matrix-capsnet-small")
    assert config.model_options == {"variant": "soft"}
    assert RunConfig(model="cnn-small").model_options == {}
    values = json.loads(json.dumps(config, default=vars))
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert RunConfig.read(tmp_path) == config
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_options": {}}))
    assert RunConfig.read(tmp_path).model_options == {"variant": "paper"}
