"""Networks in front of capsules: by name, of one's own, from transformers; every head; frozen ones with kept maps."""

import json
import pickle
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.estimators import CapsuleImageClassifier
from torchcaps.export import export_model
from torchcaps.inspection.routes import find_routes
from torchcaps.models import BackboneCapsules, create_model, load_model, register_backbone
from torchcaps.models.backbones import BACKBONES, build_backbone
from torchcaps.models.feature_cache import FeatureCache
from torchcaps.runs import RunConfig, run
from torchcaps.training import TrainingConfig, fit
from torchcaps.training.optim import fresh_statistics

SHAPE = (3, 16, 16)
HEADS = ("dense", "attention", "matrix", "pool")


def small(head="dense", **options):
    return BackboneCapsules(
        image_shape=SHAPE, num_classes=4, **({"backbone": "resnet-8", "types": 4, "head": head} | options)
    )


def tiny(in_channels, channels=8):
    return torch.nn.Sequential(torch.nn.Conv2d(in_channels, channels, 3, 4, 1), torch.nn.BatchNorm2d(channels))


@pytest.fixture
def registered():
    register_backbone("tiny")(tiny)
    yield "tiny"
    del BACKBONES["tiny"]


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_stems_have_a_quarter_of_the_size(name):
    with torch.device("meta"):
        maps = BACKBONES[name](3)(torch.zeros(2, 3, 32, 30))
    assert maps.shape[2:] == (8, 8)


def test_resnet_20_has_the_published_number_of_parameters():
    """0.27 M (He et al. 2016, table 6), with 1 x 1 convolutions in two shortcuts and their batch norms."""
    model = BackboneCapsules(image_shape=(3, 32, 32), num_classes=10, head="pool")
    assert sum(parameter.numel() for parameter in model.parameters()) == 272_474


@pytest.mark.parametrize("head", HEADS)
def test_a_head_learns_saves_and_comes_back(head, tmp_path):
    torch.manual_seed(0)
    model = small(head, capsule_layers=1 if head == "matrix" else 0)
    images, targets = torch.rand(8, *SHAPE), torch.arange(8) % 4
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        scores = model(images).scores
        loss = torch.nn.functional.cross_entropy(scores if head in ("pool", "attention") else 8 * scores, targets)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    model.eval().save_pretrained(tmp_path)
    again = load_model(tmp_path)
    with torch.no_grad():
        assert_close(again(images).scores, model(images).scores)
    assert again.head == head


@pytest.mark.parametrize("head", ["dense", "matrix"])
def test_what_pictures_and_parse_trees_stand_on(head):
    model = small(head, capsule_layers=2 if head == "matrix" else 0).eval()
    results = model.route(torch.rand(1, *SHAPE))
    assert list(results)[-1] == "class_capsules"
    assert all(model.get_submodule(name) is not None for name in results)
    assert model.first_window().step == (4, 4)
    routes = find_routes(model, torch.rand(*SHAPE))
    assert list(routes.results) == list(results)
    assert not small("pool").is_routed


@pytest.mark.slow
def test_a_network_that_is_exported_answers_alike(tmp_path):
    model = small().eval()
    exported = export_model(model, tmp_path / "model.onnx")
    assert exported.difference < 1e-4


def test_weights_stay_alive_with_the_number_of_classes():
    lengths = []
    for num_classes in (10, 100):
        torch.manual_seed(0)
        model = BackboneCapsules(image_shape=SHAPE, num_classes=num_classes, backbone="resnet-8")
        lengths.append(float(model(torch.rand(4, *SHAPE)).scores.detach().mean()))
    assert lengths[1] == pytest.approx(lengths[0], rel=0.5)


def test_a_backbone_of_ones_own_by_name(registered, tmp_path):
    model = small(backbone=registered, backbone_options={"channels": 12})
    assert model.primary.in_channels == 12
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path).primary.in_channels == 12
    with pytest.raises(ValueError, match="does not take backbone_options"):
        small(backbone=registered, backbone_options={"depth": 3})
    with pytest.raises(ValueError, match="there is a backbone 'tiny' already"):
        register_backbone("tiny")(lambda in_channels: tiny(in_channels))


def test_a_module_as_it_is_learns_but_has_no_name_to_be_saved_by(tmp_path):
    model = small(backbone=tiny(3))
    assert model(torch.rand(2, *SHAPE)).scores.shape == (2, 4)
    with pytest.raises(ValueError, match="register a function that makes it"):
        model.save_pretrained(tmp_path)


def test_a_folder_does_not_make_code_of_its_own_run(tmp_path, monkeypatch):
    (tmp_path / "my_backbone_code.py").write_text(
        "import torch\n\ndef make(in_channels):\n    return torch.nn.Conv2d(in_channels, 8, 4, 4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = small(backbone="my_backbone_code:make")
    model.save_pretrained(tmp_path / "model")
    assert load_model(tmp_path / "model").primary.in_channels == 8
    monkeypatch.delitem(sys.modules, "my_backbone_code")
    with pytest.raises(ValueError, match="TORCHCAPS_TRUST=my_backbone_code"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "resnet-21"}, "did you mean 'resnet"),
        ({"backbone": "no/such/folder/at/all"}, "the image network no/such/folder/at/all cannot be read"),
        ({"backbone": "torch.nn:Missing"}, "no backbone at"),
        ({"backbone": torch.nn.Flatten()}, "must give feature maps"),
        ({"backbone": torch.nn.Identity(), "backbone_options": {"a": 1}}, "a module has its own"),
        ({"head": "round"}, "head must be one of"),
        ({"capsule_layers": 1}, "are for head='matrix'"),
        ({"head": "pool", "routing": "em"}, "has no routing"),
    ],
)
def test_what_a_backbone_cannot_be(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        small(**options)


def transformers_folder(kind, folder):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "convnext": lambda: transformers.ConvNextConfig(hidden_sizes=[4, 8, 8, 12], depths=[1, 1, 1, 1], patch_size=2),
        "resnet": lambda: transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
        ),
        "vit": lambda: transformers.ViTConfig(
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=16,
            patch_size=4,
        ),
    }
    torch.manual_seed(1)
    network = transformers.AutoModel.from_config(sizes[kind]())
    network.save_pretrained(folder)
    scaling = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    (folder / "preprocessor_config.json").write_text(json.dumps(scaling))
    return network.eval()


@pytest.mark.parametrize(("kind", "grid"), [("convnext", (1, 1)), ("resnet", (2, 2)), ("vit", (4, 4))])
def test_networks_of_transformers_from_a_folder(kind, grid, tmp_path):
    network = transformers_folder(kind, tmp_path / "network")
    model = small(backbone=str(tmp_path / "network")).eval()
    images = torch.rand(2, *SHAPE)
    scaled = (images - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    with torch.no_grad():
        hidden, maps = network(scaled).last_hidden_state, model.maps(images)
        assert maps.shape == (2, 12, *grid)
        expected = hidden[:, 1:].mT.reshape(2, 12, *grid) if kind == "vit" else hidden
        assert_close(maps, expected)
        model.save_pretrained(tmp_path / "saved")
        for path in (tmp_path / "network").iterdir():
            path.unlink()  # what was saved needs it no more
        assert_close(load_model(tmp_path / "saved").maps(images), maps)


def test_frozen_maps_are_kept_and_are_the_same(tmp_path):
    torch.manual_seed(0)
    model = small(frozen=True).train()
    calls = []
    model.features.register_forward_hook(lambda *_: calls.append(1))
    images = torch.rand(6, *SHAPE)
    first = model.maps(images)
    assert_close(model.maps(images.flip(0)), first.flip(0))
    assert_close(model.maps(torch.cat([images[:2], torch.rand(1, *SHAPE)]))[:2], first[:2])
    assert len(calls) == 2  # all six, then the one that is new
    assert not model.features.training
    before = deepcopy(model.features.state_dict())
    with fresh_statistics(model):
        model(images)
    fit(model, [(np.zeros((16, 16, 3), np.uint8), 0), (np.full((16, 16, 3), 200, np.uint8), 1)] * 4, None,
        TrainingConfig(epochs=1, batch_size=4))  # fmt: skip
    for name, tensor in model.features.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    with torch.no_grad():
        model.features[0].weight.add_(1.0)
        changed = model.maps(images)
        assert not torch.allclose(changed, first)
        assert_close(changed, model.features(images))


def test_kept_maps_of_an_evaluation_are_trained_on():
    """Maps made in inference mode, and under autocast, come to a training step that needs gradients of the head."""
    model, images = small(frozen=True, head="attention"), torch.rand(4, *SHAPE)
    with torch.inference_mode():
        model.eval()(images)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixed = model.maps(images)
    plain = model.train().maps(images)
    assert (mixed.dtype, plain.dtype) == (torch.bfloat16, torch.float32)
    model(images).scores.sum().backward()
    assert bool(model.primary.conv.weight.grad.isfinite().all())
    assert model.bfloat16().maps(images.bfloat16()).dtype == torch.bfloat16


def test_a_cache_that_finds_nothing_gives_its_memory_back():
    network = torch.nn.Conv2d(1, 1, 1).requires_grad_(False)
    cache = FeatureCache(most_bytes=4 * 10)
    for _ in range(4):
        cache(network, torch.rand(3, 1, 1, 1))
    assert cache.is_useless
    assert cache.num_bytes == 0
    assert pickle.loads(pickle.dumps(cache)).most_bytes == 40
    assert deepcopy(cache) is cache


def test_the_rate_of_a_trained_backbone():
    model = small(backbone_rate=0.1)
    assert {rate for name, rate in model.learning_rates.items() if name.startswith("features.")} == {0.1}
    assert len(model.learning_rates) == len(list(model.features.parameters()))
    assert model.learning_rates.get("primary.conv.weight", 1.0) == 1.0


def test_an_estimator_with_a_backbone():
    images = np.random.default_rng(0).integers(0, 256, (12, 12, 12, 3), dtype=np.uint8)
    labels = np.arange(12) % 3
    classifier = CapsuleImageClassifier(
        backbone="resnet-8", model_options={"head": "attention", "types": 4}, epochs=1, random_state=0
    )
    assert classifier.fit(images, labels).predict(images).shape == (12,)
    assert classifier.model_.name == "backbone-capsules"
    with pytest.raises(ValueError, match="not of 'capsnet'"):
        CapsuleImageClassifier(backbone="resnet-8", model="capsnet", epochs=1).fit(images, labels)


def test_a_run_of_the_command_line(tmp_path):
    config = RunConfig(
        model="backbone-capsules", num_train=60, num_test=20,
        model_options={"backbone": "resnet-8", "head": "matrix", "types": 4},
        training=TrainingConfig(epochs=1, batch_size=30),
    )  # fmt: skip
    result = run(config, tmp_path / "run")
    assert 0 <= result["accuracy"] <= 1
    assert create_model("backbone-capsules", pretrained=tmp_path / "run" / "model").head == "matrix"
    assert build_backbone("resnet-8", SHAPE).channels == 64
