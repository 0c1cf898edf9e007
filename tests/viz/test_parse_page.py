"""The page of a parse tree shows what every capsule of it sees."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from torchcaps.inspection import ParseNode, ParseTree, find_routes, parse_tree
from torchcaps.models import create_model
from torchcaps.viz import parse_tree_page
from torchcaps.viz.parse_page import DIMMED, place_columns


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.rand(2, 20, 24, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def tree(image) -> ParseTree:
    torch.manual_seed(0)
    model = create_model("matrix-capsnet-small", image_shape=(2, 20, 24), num_classes=3, types=(3, 4, 5))
    return parse_tree(find_routes(model, image))


def walk(node: ParseNode) -> Iterator[ParseNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def test_a_page_shows_what_every_capsule_sees(tree, image):
    root = tree.root
    nodes = list(walk(root))
    figure = parse_tree_page(tree, image.numpy())
    page, *thumbnails = figure.axes
    assert len(thumbnails) == len(nodes)
    assert len(page.lines) == len(nodes) - 1
    for axes, node in zip(thumbnails, nodes, strict=True):
        top, left, height, width = node.window
        shown = np.asarray(axes.get_images()[0].get_array())
        expected = DIMMED * image[0].numpy()
        expected[top : top + height, left : left + width] /= DIMMED
        assert np.allclose(shown, expected, atol=1e-6)
    assert any(text.get_text().startswith(f"{root.label}: {root.activation:.2f}") for text in page.texts)


def test_leaves_stand_side_by_side(tree):
    root = tree.root
    places: dict[int, float] = {}
    leaves = [node for node in walk(root) if not node.children]
    assert place_columns(root, places, 0) == len(leaves)
    assert [places[id(node)] for node in leaves] == [number + 0.5 for number in range(len(leaves))]
