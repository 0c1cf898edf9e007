"""Saved folders rebuild model, preprocessing and labels; damaged or foreign ones are refused in one sentence."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.inputs.images import Preprocessing
from torchcaps.models import ImageModel, create_model, list_models, load_model
from torchcaps.models.capsnet import FORMER, FORMER_DECODER, CapsNet
from torchcaps.models.loading import described_shapes
from torchcaps.models.registry import MODELS


@pytest.fixture
def saved(tmp_path):
    model = create_model("cnn-small", image_shape=(1, 20, 20), num_classes=2)
    model.labels = ("cat", "dog")
    model.preprocessing = Preprocessing(image_size=(24, 24), channels=1, scaling="standardise", crop=(20, 20))
    model.card = {"title": "pets", "data": "two pictures", "terms of the data": "free"}
    model.save_pretrained(tmp_path / "pets")
    return tmp_path / "pets"


def test_folder_rebuilds_everything(saved):
    model = load_model(saved)
    assert isinstance(model, ImageModel)
    assert not model.training
    assert model.labels == ("cat", "dog")
    assert model.preprocessing.crop == (20, 20)
    card = (saved / "README.md").read_text()
    assert "pets" in card
    assert "terms of the data: free" in card


def test_predictor_takes_raw_images(saved):
    predictor = torchcaps.load(saved)
    images = np.random.default_rng(0).integers(0, 256, (5, 48, 48), dtype=np.uint8)
    probabilities = predictor.predict_proba(images, batch_size=2)
    assert probabilities.shape == (5, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert (predictor.predict(images) == probabilities.argmax(1)).all()
    np.testing.assert_allclose(predictor.predict_proba(images), probabilities, rtol=1e-4, atol=1e-6)
    several = predictor.predict_proba(images, crops=5)
    assert several.shape == (5, 2)
    assert not np.allclose(several, probabilities)
    assert predictor.predict_proba(images[:0]).shape == (0, 2)


def test_loading_never_unpickles(saved):
    (saved / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or belongs to another model"):
        load_model(saved)


def test_damage_is_named(saved):
    weights = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_model(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        load_model(saved)
    (saved / "config.json").write_text(json.dumps({"architectures": ["Bert"]}))
    with pytest.raises(ValueError, match="was not written by torchcaps"):
        load_model(saved)


def test_wrong_names_and_kinds(saved, tmp_path):
    with pytest.raises(ValueError, match="describes 'cnn-small', which is not a CapsNet"):
        CapsNet.from_pretrained(saved)
    with pytest.raises(FileNotFoundError, match="no model at 'nothing'"):
        load_model("nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"is not a saved model: it has no readable config\.json"):
        load_model(tmp_path / "empty")


def test_a_run_that_is_misspelt_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs" / "mnist-capsules-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="the folder 'runs' is here; did you mean runs/mnist-capsules-1"):
        load_model("runs/mnist-capsule-1")


def test_loading_is_light():
    """Shapes are compared before memory is taken, and no compiler is loaded for it."""
    loads = "torchcaps.load('capsnet-small-mnist'), torchcaps.load('matrix-capsnet-small-toys')"
    code = f"import sys, torchcaps\n{loads}\nassert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", list_models())
def test_shapes_are_known_without_memory(name):
    kind = MODELS[name].kind
    options = {"image": {"image_shape": (2, 32, 32)}, "text": {"num_tokens": 20}, "user": {}}[kind]
    options |= {"num_classes": 3}
    expected = {key: tuple(tensor.shape) for key, tensor in create_model(name, **options).state_dict().items()}
    assert described_shapes(MODELS[name], options) == expected


def test_capsnet_small_of_an_older_version_gives_the_same_bits(tmp_path):
    """Before its decoder could be chosen it was not written down; such a folder has the decoder of then."""
    torch.manual_seed(0)
    model = create_model("capsnet-small", image_shape=(1, 20, 20), num_classes=3, **FORMER).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in FORMER_DECODER:
        del config["arguments"][name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    images = torch.rand(2, 1, 20, 20)
    with torch.inference_mode():
        before, after = model(images), load_model(tmp_path)(images)
    assert all(torch.equal(*pair) for pair in zip(before[:3], after[:3], strict=True))
    assert load_model(tmp_path).options["pose_scale"] == 1.0
