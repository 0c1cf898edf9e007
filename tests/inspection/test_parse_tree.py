"""The parse tree follows the strongest couplings from a class down to the primary capsules."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from torchcaps.inspection import ParseNode, find_routes, parse_tree
from torchcaps.inspection.parse_tree import strongest_children
from torchcaps.models import create_model

LAYERS = ("primary", "conv1", "conv2", "class_capsules")


def new_model(**routing_options):
    torch.manual_seed(0)
    options = {"types": (3, 4, 5), "routing_options": routing_options}
    return create_model("matrix-capsnet-small", image_shape=(2, 20, 24), num_classes=3, **options).eval()


@pytest.fixture(scope="module")
def model():
    return new_model(num_iterations=2)


@pytest.fixture(scope="module")
def image():
    return torch.rand(2, 20, 24, generator=torch.Generator().manual_seed(0))


def walk(node: ParseNode) -> Iterator[ParseNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def test_the_root_is_the_answer_and_every_layer_follows(model, image):
    root = parse_tree(find_routes(model, image), breadth=(2, 3, 2)).root
    scores = model(image[None]).scores[0]
    assert root.type == int(scores.argmax())
    assert root.activation == pytest.approx(scores.max().item(), abs=1e-5)
    assert (root.label, root.window, root.share) == (model.labels[root.type], (0, 0, 20, 24), 1.0)
    nodes = list(walk(root))
    sizes = [sum(node.layer == layer for node in nodes) for layer in LAYERS]
    assert sizes[3] == 1
    assert sizes[2] == 2
    assert 2 <= sizes[1] <= 6
    assert len({(node.layer, node.row, node.column, node.type) for node in nodes}) == len(nodes)  # a tree


def test_shares_and_couplings_are_those_of_the_routing(model, image):
    root = parse_tree(find_routes(model, image), chosen=1).root
    children = model.conv2(model.conv1(model.primary(model.features(image[None]))))
    coupling = model.class_capsules.route(children).coupling[0, :, 1]
    given = (coupling * children.activations.flatten()).detach()
    best = int(given.argmax())
    first = root.children[0]
    assert (first.row, first.column, first.type) == np.unravel_index(best, children.activations.shape[1:])
    assert first.coupling == pytest.approx(coupling[best].item(), abs=1e-5)
    assert first.share == pytest.approx((given[best] / given.sum()).item(), abs=1e-5)
    assert [node.share for node in root.children] == sorted((node.share for node in root.children), reverse=True)


def test_where_all_couplings_are_alike_votes_hang_on_the_parents_they_fit(image):
    model = new_model(num_iterations=1)
    root = parse_tree(find_routes(model, image), chosen=1, breadth=(3, 2, 2)).root
    children = model.conv2(model.conv1(model.primary(model.features(image[None]))))
    assert model.class_capsules.route(children).coupling.unique().numel() == 1
    fit = new_model(num_iterations=2).class_capsules.route(children).coupling[0, :, 1].detach()
    best = int((fit * children.activations.flatten()).argmax())
    first = root.children[0]
    assert (first.row, first.column, first.type) == np.unravel_index(best, children.activations.shape[1:])
    assert first.coupling == pytest.approx(fit[best].item(), abs=1e-5)
    assert sum(bool(node.children) for node in root.children) >= 2  # not all of them hang on the first


def test_convolutional_couplings_are_found_in_their_windows(model, image):
    root = parse_tree(find_routes(model, image)).root
    children = model.conv1(model.primary(model.features(image[None])))
    result = model.conv2.route(children)
    for parent in root.children:
        for child in parent.children:
            slot = np.ravel_multi_index((child.row - parent.row, child.column - parent.column, child.type), (3, 3, 4))
            expected = result.coupling[0, parent.row, parent.column, slot, parent.type]
            assert child.coupling == pytest.approx(expected.item(), abs=1e-5)


def test_windows_are_those_of_the_convolutions(model, image):
    primary = next(node for node in walk(parse_tree(find_routes(model, image)).root) if node.layer == "primary")
    assert primary.window == (2 * primary.row, 2 * primary.column, 5, 5)
    for node in walk(parse_tree(find_routes(model, image)).root):
        if node.layer == "conv1":
            assert node.window == (4 * node.row, 4 * node.column, 9, 9)
        if node.layer == "conv2":
            assert node.window == (4 * node.row, 4 * node.column, 17, 17)
        for child in node.children:
            assert node.window[0] <= child.window[0]
            assert child.window[0] + child.window[2] <= node.window[0] + node.window[2]
            assert child.window[1] + child.window[3] <= node.window[1] + node.window[3]


def test_a_border_of_zeros_is_not_part_of_the_image():
    torch.manual_seed(0)
    small = create_model("matrix-capsnet-small", image_shape=(1, 9, 9), num_classes=2, types=(2, 2, 2))
    for node in walk(parse_tree(find_routes(small, torch.rand(1, 9, 9))).root):
        top, left, height, width = node.window
        assert min(top, left, height, width) >= 0
        assert max(top + height, left + width) <= 9


def test_a_child_hangs_on_the_parent_to_which_it_gives_most():
    coupling = np.array([[0.7, 0.2], [0.1, 0.9], [0.5, 0.4], [0.6, 0.0]])
    activations = np.array([1.0, 0.5, 0.8, 0.0])
    links = strongest_children(coupling, activations, [0, 1], 2, num_types=1)
    assert {child: link.parent for child, link in links.items()} == {0: 0, 2: 0, 1: 1}  # a silent child gives nothing
    assert links[0].share == pytest.approx(0.7 / (0.7 + 0.05 + 0.4))
    assert list(strongest_children(coupling, activations, [0], 1, num_types=1)) == [0]


def test_of_each_place_the_strongest_child_is_kept():
    coupling = np.array([[0.3], [0.9], [0.5], [0.4], [0.1], [0.2]])  # three places with two types each
    links = strongest_children(coupling, np.ones(6), [0], 3, num_types=2)
    assert list(links) == [1, 2, 5]


def test_a_tree_is_json(model, image):
    tree = parse_tree(find_routes(model, image))
    assert tree.layers == LAYERS
    first = json.loads(json.dumps(tree.to_dict()))["root"]["children"][0]
    assert first["window"] == list(tree.root.children[0].window)
    assert first["share"] == tree.root.children[0].share


def test_what_has_no_tree(model, image):
    small = create_model("capsnet-small", image_shape=(2, 28, 28), num_classes=3)
    with pytest.raises(ValueError, match="capsnet-small has one routed layer; a tree needs two"):
        parse_tree(find_routes(small, torch.rand(2, 28, 28)))
    routes = find_routes(model, image)
    with pytest.raises(ValueError, match="chosen must be between 0 and 2, got 3"):
        parse_tree(routes, chosen=3)
    with pytest.raises(ValueError, match="breadth must be 3 positive integers"):
        parse_tree(routes, breadth=(2, 2))
