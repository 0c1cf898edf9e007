"""`sharing` was called `weights`: said once where people write it, never where files do."""

import json
from dataclasses import asdict

import pytest
import torch

from torchcaps.experiments import find_experiment
from torchcaps.experiments.harness import read_run
from torchcaps.models import create_model, load_model
from torchcaps.models.capsnet import CapsNetSmall
from torchcaps.models.text import TextCapsuleA
from torchcaps.nn import ClassCaps, ConvCaps1d, ConvCaps2d, DenseCaps, DynamicRouting
from torchcaps.runs import RunConfig
from torchcaps.votes import ClassVotes, ConvVotes, DenseVotes
from torchcaps.votes.sharing import read_options

IMAGE = {"image_shape": (1, 20, 20), "num_classes": 2}
MAP, WEIGHT = torch.zeros(1, 4, 4, 2, 3), torch.zeros(5, 3, 6)
OLD = {
    "dense votes": lambda **new: DenseVotes(torch.zeros(1, 4, 3), WEIGHT, **new),
    "convolutional votes": lambda **new: ConvVotes(MAP, WEIGHT, kernel_size=3, **new),
    "class votes": lambda **new: ClassVotes(MAP, WEIGHT, **new),
    "dense layer": lambda **new: DenseCaps(4, 5, 3, 6, routing=DynamicRouting(), **new),
    "layer over time": lambda **new: ConvCaps1d(4, 5, 3, 6, 3, routing=DynamicRouting(), **new),
    "layer over space": lambda **new: ConvCaps2d(4, 5, 3, 6, 3, routing=DynamicRouting(), **new),
    "class layer": lambda **new: ClassCaps(4, 5, 3, 6, routing=DynamicRouting(), **new),
    "model of images": lambda **new: CapsNetSmall(**IMAGE, **new),
    "model of texts": lambda **new: TextCapsuleA(num_tokens=9, num_classes=2, **new),
    "model by name": lambda **new: create_model("capsnet-shared", **IMAGE, **new),
}


@pytest.mark.parametrize("make", OLD.values(), ids=OLD)
def test_the_old_name_is_taken_with_one_warning(make):
    with pytest.warns(FutureWarning, match="^weights= is now called sharing=") as said:
        made = make(weights="shared")
    assert len(said) == 1
    assert said[0].filename == __file__  # where people wrote it
    expected = make(sharing="shared")
    if isinstance(made, torch.nn.Module):
        shapes = [{name: tensor.shape for name, tensor in each.state_dict().items()} for each in (made, expected)]
        assert shapes[0] == shapes[1]
        assert repr(made) == repr(expected)
    else:
        assert len(made.weight) == len(expected.weight) == 1
    with pytest.raises(TypeError, match="weights= is the old name of sharing=; give sharing alone"):
        make(weights="shared", sharing="shared")


def test_what_never_had_the_option_does_not_take_it():
    with pytest.raises(ValueError, match="an option of cnn-small must be one of .*, got 'weights'"):
        create_model("cnn-small", **IMAGE, weights="shared")


def test_old_folders_load_without_a_word(tmp_path):
    model = create_model("capsnet-small", **IMAGE, sharing="factorised")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["arguments"]["weights"] = config["arguments"].pop("sharing")
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load_model(tmp_path)
    assert again.options["sharing"] == "factorised"
    assert again.class_capsules.sharing == "factorised"


def test_old_runs_are_those_of_today(tmp_path):
    row = find_experiment("mnist-ablation").choose_rows("quick", only=["shared weights"])[0]
    place = tmp_path / row.folder / "seed-0"
    place.mkdir(parents=True)
    values = asdict(row.config)
    assert values["model_options"]["sharing"] == "shared"
    values["model_options"]["weights"] = values["model_options"].pop("sharing")
    (place / "config.json").write_text(json.dumps(values))
    (place / "measures.json").write_text(json.dumps({"measures": {"error": 1.0}, "diverged": None}))
    done = read_run(row, 0, tmp_path)
    assert done is not None
    assert done.config == row.config == RunConfig.read(place)


def test_an_option_of_another_meaning_keeps_its_name():
    assert read_options({"weights": "imagenet"}) == {"weights": "imagenet"}
    assert read_options({"weights": "full", "sharing": "shared"}) == {"weights": "full", "sharing": "shared"}
