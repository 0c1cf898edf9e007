"""One forward tells all of an answer, of models that ship and of a user's own."""

from collections import Counter

import numpy as np
import pytest
import torch

from support.services import TEXTS, text_model
from torchcaps.inspection import (
    class_routing,
    find_routes,
    origin_shares,
    parse_tree,
    seen_window,
    vote_plane,
    word_reasons,
)
from torchcaps.models import ImageModel, Model, create_model
from torchcaps.nn import CapsuleLayer, ConvCaps2d, DenseCaps, DynamicRouting, NgramCaps, PrimaryCaps
from torchcaps.predictor import Predictor
from torchcaps.service import Refusal, Service
from torchcaps.viz import coupling_strip, parse_tree_page, vote_origins, vote_strip


@pytest.fixture
def forwards(monkeypatch) -> Counter:
    """How often each kind of layer is asked to route or to read."""
    counted = Counter()

    def count(kind: type, method: str) -> None:
        plain = getattr(kind, method)

        def work(self, *arguments, **options):
            counted[type(self).__name__] += 1
            return plain(self, *arguments, **options)

        monkeypatch.setattr(kind, method, work)

    count(CapsuleLayer, "route")
    count(NgramCaps, "forward")
    count(torch.nn.Conv2d, "forward")
    return counted


def test_one_forward_for_an_explanation_of_a_matrix_network(forwards):
    model = create_model("matrix-capsnet-small", image_shape=(2, 20, 20), num_classes=5, types=(2, 3, 3))
    service = Service({"matrix": Predictor(model)})
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 2), dtype=np.uint8)
    explained = service.explain("matrix", image=image)
    assert explained.places is not None
    assert explained.tree is not None
    assert forwards == {"Conv2d": 2, "ConvCaps2d": 2, "ClassCaps": 1}  # each layer once
    forwards.clear()
    service.trace("matrix", image=image)
    assert forwards == {"Conv2d": 2, "ConvCaps2d": 2, "ClassCaps": 1}


def test_one_forward_for_the_reasons_of_a_text(forwards):
    model = text_model("text-capsule-a", TEXTS, "words", max_length=20)
    once = {"NgramCaps": 1, "ConvCaps1d": 1, "ClassCaps": 1}
    word_reasons(model, ["a fine film"])
    assert forwards == once
    forwards.clear()
    Service({"english": Predictor(model)}).explain("english", text="a fine film")
    assert forwards == once


@pytest.mark.parametrize("name", ["capsnet-small", "matrix-capsnet-small"])
def test_forward_concludes_from_the_route(name):
    torch.manual_seed(0)
    model, images = create_model(name, image_shape=(1, 20, 20), num_classes=3).eval(), torch.rand(2, 1, 20, 20)
    results = model.route(images, return_trace=True)
    assert all(result.trace is not None for result in results.values())
    for found, expected in zip(model.conclude(results), model(images), strict=True):
        assert (found is expected is None) or torch.equal(found, expected)
    assert all(result.trace is None for result in model.route(images).values())


class OwnModel(ImageModel):
    """A capsule network of a user's own: it says how its layers are routed, and no more."""

    name = "own"

    def __init__(self, **options) -> None:
        super().__init__(image_shape=(1, 12, 12), num_classes=3, **options)
        self.features = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.MaxPool2d(2), torch.nn.ReLU())
        self.primary = PrimaryCaps(8, 2, 4, kernel_size=1)
        self.middle = ConvCaps2d(2, 3, 4, 4, kernel_size=2, routing=DynamicRouting())
        self.top = DenseCaps(4 * 4 * 3, 3, 4, 6, routing=DynamicRouting())

    def route(self, images, /, *, return_trace=False):
        parts = self.middle.route(self.primary(self.features(images)), return_trace=return_trace)
        return {"middle": parts, "top": self.top.route(parts.capsules, return_trace=return_trace)}


def test_a_model_of_a_users_own_is_drawn_and_explored():
    torch.manual_seed(0)
    model, image = OwnModel().eval(), torch.rand(1, 12, 12)
    routes = find_routes(model, image, return_trace=True)
    assert model(image[None]).scores.equal(routes.results["top"].capsules.activations)
    routed = class_routing(routes)
    assert routed.grid == (4, 4, 3)
    assert origin_shares(routed, 1).sum() == pytest.approx(100, abs=0.01)
    assert vote_plane(routed, [0, 2], 5).votes.shape == (5, 2, 2)
    assert seen_window(routes) == ((0, 0), (6, 6), (2, 2))  # 3 pixels, pooled to 4, two of these
    tree = parse_tree(routes)
    assert tree.layers == ("primary", "middle", "top")
    for figure in (coupling_strip(routed), vote_strip(routed), vote_origins(routed)):
        assert figure.axes
    assert parse_tree_page(tree, image.numpy()).axes
    service = Service({"own": Predictor(model)})
    picture = np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8)
    assert service.models().models[0].abilities == ["predict", "explain", "trace", "tree", "attack"]
    assert service.explain("own", image=picture).tree.layers == list(tree.layers)
    assert len(service.trace("own", image=picture).steps) == 3


def test_what_a_model_of_a_users_own_does_not_tell_is_refused_in_a_sentence():
    model = OwnModel().eval()
    del model.primary
    model.first = PrimaryCaps(8, 2, 4, kernel_size=1)

    def route(images, /, *, return_trace=False):
        parts = model.middle.route(model.first(model.features(images)), return_trace=return_trace)
        return {"middle": parts, "top": model.top.route(parts.capsules.flatten(), return_trace=return_trace)}

    model.route = route
    service, picture = Service({"own": Predictor(model)}), np.zeros((12, 12), np.uint8)
    with pytest.raises(Refusal, match="own does not tell what its first capsules see of an image"):
        service.explain("own", image=picture)
    with pytest.raises(Refusal, match=r"places are told where .* got \(48,\)"):
        service.trace("own", image=picture)
    model.route = lambda images, /, *, return_trace=False: {"Top": route(images)["top"]}
    with pytest.raises(ValueError, match="must name its results as get_submodule names capsule layers, got 'Top'"):
        _ = find_routes(model, torch.rand(1, 12, 12)).class_layer
    assert not Model.is_routed.fget(create_model("cnn-small", image_shape=(1, 28, 28), num_classes=2))
