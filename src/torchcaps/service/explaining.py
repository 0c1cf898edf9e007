"""Where in an image the votes for a class come from, and which parts make it up."""

from torch import Tensor

from torchcaps.models import Model
from torchcaps.service.results import Box, Edge, Node, Places, Tree, Window
from torchcaps.viz.origins import grid_window, shares
from torchcaps.viz.parse_tree import LAYERS, ParseNode, parse_tree
from torchcaps.viz.routed import route_classes


def places_of(model: Model, image: Tensor, chosen: int) -> Places:
    """The share of each place of the grid of capsules in the pose of a class.

    Args:
        model: a capsule network of images.
        image: (C, H, W), after preprocessing.
        chosen: number of the class.
    """
    window = grid_window(model)
    _, height, width = image.shape
    return Places(
        shares=shares(route_classes(model, image), chosen),
        window=Window(
            top=window.corner[0],
            left=window.corner[1],
            height=window.size[0],
            width=window.size[1],
            row_step=window.step[0],
            column_step=window.step[1],
        ),
        image_height=height,
        image_width=width,
    )


def tree_of(model: Model, image: Tensor, chosen: int) -> Tree:
    """The parse tree of an image (C, H, W) through a matrix network, from a class downwards."""
    tree = Tree(layers=list(LAYERS), nodes=[], edges=[])
    _add(tree, parse_tree(model, image, chosen=chosen), None)
    return tree


def _add(tree: Tree, node: ParseNode, parent: int | None) -> None:
    """Append a node and all below it."""
    number, is_class = len(tree.nodes), parent is None
    top, left, height, width = node.window
    tree.nodes.append(
        Node(
            layer=LAYERS.index(node.layer),
            row=None if is_class else node.row,
            column=None if is_class else node.column,
            type=node.type,
            label=node.label or None,
            activation=round(node.activation, 6),
            window=None if is_class else Box(top=top, left=left, height=height, width=width),
        )
    )
    if parent is not None:
        edge = Edge(parent=parent, child=number, coupling=round(node.coupling, 6), share=round(node.share, 6))
        tree.edges.append(edge)
    for child in node.children:
        _add(tree, child, number)
