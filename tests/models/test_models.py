"""Every model with every routing keeps one contract."""

import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.data import load_data
from torchcaps.losses import margin_loss
from torchcaps.models import create_model, list_models
from torchcaps.nn import FullyConnectedDecoder
from torchcaps.predictor import Predictor
from torchcaps.routing import routing_names, use_backend
from torchcaps.training import TrainingConfig, fit
from torchcaps.votes import LinearVotes

ROUTED = ["capsnet", "capsnet-small", "capsnet-shared", "efficient-capsnet", "matrix-capsnet", "matrix-capsnet-small"]
WITHOUT_KERNEL = ("attention", "self_attention", "vb", "heinsen", "self", "max_min")
COMBINATIONS = [(name, routing) for name in ROUTED for routing in routing_names()]
COMBINATIONS += [(name, None) for name in list_models("image") if name not in ROUTED]


def small(name: str, routing: str | None, **options):
    """The smallest useful instance: images of 17 x 18, where the largest model is affordable."""
    torch.manual_seed(0)
    if routing is not None:
        options["routing"] = routing
    if name == "matrix-capsnet":
        options["types"] = (4, 4, 4)
    return create_model(name, image_shape=(2, 18, 17), num_classes=3, **options)


@pytest.mark.parametrize(("name", "routing"), COMBINATIONS)
def test_contract(name, routing, tmp_path):
    model = small(name, routing)
    images, classes = torch.rand(3, 2, 18, 17), torch.tensor([0, 1, 2])
    output = model.train()(images, classes)
    assert output.scores.shape == (3, 3)
    if model.gives_activations:
        assert ((output.scores >= 0) & (output.scores <= 1)).all()
        assert output.poses.shape[:2] == (3, 3)
    loss = output.scores.square().sum()
    if output.reconstruction is not None:
        assert output.reconstruction.shape == images.shape
        loss = loss + output.reconstruction.square().sum()
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if routing == "self" and output.reconstruction is None and parameter_name == "class_capsules.weight":
            # activations are what children decide; only poses need votes
            assert parameter.grad is None or not parameter.grad.any()
            continue
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name

    model.eval()
    with torch.no_grad():
        whole, one = model(images), model(images[:1])
        torch.testing.assert_close(one.scores, whole.scores[:1], rtol=1e-4, atol=1e-5)
        probabilities = model.task.estimate(whole)
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(3))
        model.save_pretrained(tmp_path / "saved")
        again = type(model).from_pretrained(tmp_path / "saved")
        assert torch.equal(again(images).scores, whole.scores)
        assert again.config() == model.config()


@pytest.mark.parametrize(("name", "routing"), [c for c in COMBINATIONS if c[1] in (None, "dynamic", "em")])
def test_compiles(name, routing):
    model = small(name, routing).eval()
    images = torch.rand(2, 2, 18, 17)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images).scores, model(images).scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("capsnet", (1, 28, 28), 10, 8_215_568),
        ("matrix-capsnet", (2, 32, 32), 5, 317_194),
        ("matrix-capsnet-small", (2, 32, 32), 5, 68_754),
        ("cnn-baseline", (2, 32, 32), 5, 4_253_349),
    ],
)
def test_published_parameter_counts(name, shape, classes, expected):
    options = {"variant": "paper"} if name.startswith("matrix") else {}
    model = create_model(name, image_shape=shape, num_classes=classes, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("name", ["capsnet-small", "capsnet-shared", "cnn-small", "no-routing"])
def test_small_models_are_small(name):
    model = create_model(name, image_shape=(1, 28, 28), num_classes=10)
    sizes = {key: p.numel() for key, p in model.named_parameters() if not key.startswith("decoder")}
    assert sum(sizes.values()) < (350_000 if name == "capsnet-small" else 200_000)  # full transformations


@pytest.mark.parametrize("name", list_models("image"))
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 20)])
def test_any_image_size(name, shape):
    options = {"types": (2, 2, 2)} if name == "matrix-capsnet" else {}
    model = create_model(name, image_shape=shape, num_classes=2, multi_label=True, **options).eval()
    with torch.no_grad():
        output = model(torch.rand(2, *shape))
    assert output.scores.shape == (2, 2)
    assert output.reconstruction is None or output.reconstruction.shape == (2, *shape)


def test_efficient_capsnet_is_the_published_network():
    """16 primary capsules that see the whole map, with biases of convolutions, norms and couplings all counted."""
    options = {"image_shape": (1, 28, 28), "num_classes": 10}
    model = create_model("efficient-capsnet", reconstruct=False, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == 161_824
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert sizes == {"features": 130_688, "primary": 10_496, "class_capsules": 20_640}
    assert [type(layer).__name__ for layer in model.features[:3]] == ["Conv2d", "ReLU", "BatchNorm2d"]
    decoder = create_model("efficient-capsnet", **options).decoder
    assert sum(p.numel() for p in decoder.parameters()) == 1_411_344  # that of CapsNet


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 48, 48), (3, 17, 40), (1, 8, 8)])
def test_efficient_capsnet_has_16_children_whatever_the_size(shape):
    model = create_model("efficient-capsnet", image_shape=shape, num_classes=5, reconstruct=False).eval()
    results = model.route(torch.rand(2, *shape), return_trace=True)
    assert list(results) == ["class_capsules"]
    assert results["class_capsules"].coupling.shape == (2, 16, 5)
    assert len(results["class_capsules"].trace) == 1
    window = model.first_window()
    assert all(size >= whole - 1 for size, whole in zip(window.size, shape[1:], strict=True))  # a stride leaves one out


def test_decoder_reconstructs_the_given_class():
    model = small("capsnet-small", "dynamic").eval()
    images = torch.rand(2, 2, 18, 17)
    with torch.no_grad():
        first, second = (model(images, torch.tensor([k, k])).reconstruction for k in (0, 1))
    assert not torch.equal(first, second)
    assert small("capsnet-small", "dynamic", reconstruct=False)(images).reconstruction is None


@pytest.mark.parametrize("routing", [name for name in routing_names() if name not in WITHOUT_KERNEL])
@pytest.mark.parametrize("name", ROUTED)
def test_no_votes_are_formed_where_kernels_run(name, routing, monkeypatch):
    def refuse(self):
        raise AssertionError("votes were formed")

    monkeypatch.setattr(LinearVotes, "materialise", refuse)
    model = small(name, routing)
    with use_backend("fused"):
        model(torch.rand(2, 2, 18, 17)).scores.sum().backward()
    monkeypatch.undo()
    model.zero_grad()
    with use_backend("reference"):
        assert model(torch.rand(2, 2, 18, 17)).scores.isfinite().all()


def test_a_decoder_on_a_hidden_layer():
    model = small("matrix-capsnet-small", "em")
    images = torch.rand(2, 2, 18, 17)
    hidden = model.route(images)["conv2"].capsules
    capsules = Capsules(hidden.poses.flatten(1, -2), hidden.activations.flatten(1))
    decoder = FullyConnectedDecoder(capsules.poses.shape[1], capsules.poses.shape[2], (2, 18, 17))
    assert decoder(capsules).shape == images.shape


def test_errors_are_sentences():
    with pytest.raises(ValueError, match="did you mean 'capsnet-small'"):
        create_model("capsnet-smal", image_shape=(1, 28, 28), num_classes=10)
    with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\)"):
        create_model("capsnet", image_shape=(28, 28), num_classes=10)
    model = create_model("cnn-small", image_shape=(1, 28, 28), num_classes=10)
    with pytest.raises(ValueError, match=r"images must have shape \(B, 1, 28, 28\), got \(2, 1, 27, 28\)"):
        model(torch.rand(2, 1, 27, 28))


@pytest.mark.parametrize("routing", routing_names())
def test_every_routing_learns_digits(routing):
    torch.manual_seed(0)
    digits = load_data("digits").train
    model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10, reconstruct=False, routing=routing)
    few, others = digits.subset(range(1600)), digits.subset(range(1600, 1900))
    fit(model, few, config=TrainingConfig(epochs=2, batch_size=32))
    assert (Predictor(model).predict(others.images) == others.labels).mean() > 0.5


def test_lengths_and_gradients_start_alike_with_any_number_of_classes():
    """Couplings start as 1 / J: unless the start grows with J, the gradient of the margin loss vanishes as 1 / J^2."""
    found = {}
    for num_classes, scale in ((10, True), (100, True), (100, False)):
        torch.manual_seed(0)
        model = create_model(
            "capsnet-small", image_shape=(1, 28, 28), num_classes=num_classes, reconstruct=False, scale_start=scale
        )
        scores = model(torch.rand(4, 1, 28, 28)).scores
        margin_loss(scores, torch.arange(4)).backward()
        found[num_classes, scale] = float(scores.detach().mean()), float(model.features[0].weight.grad.norm())
    for kind in (0, 1):
        assert found[100, True][kind] == pytest.approx(found[10, True][kind], rel=0.5)
        assert found[100, False][kind] < 0.05 * found[10, True][kind]
