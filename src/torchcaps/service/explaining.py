"""Where in an image the votes for a class come from, and which parts make it up."""

from torchcaps.inspection import ParseNode, Routes, class_routing, origin_shares, parse_tree, seen_window
from torchcaps.service.results import Box, Edge, Node, Places, Tree, Window


def places_of(routes: Routes, chosen: int) -> Places:
    """The share of each place of the grid of capsules in the pose of a class.

    Args:
        routes: one image on its way, with traces.
        chosen: number of the class.
    """
    window = seen_window(routes)
    height, width = routes.inputs.shape[2:]
    return Places(
        shares=origin_shares(class_routing(routes), chosen),
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


def tree_of(routes: Routes, chosen: int) -> Tree:
    """The parse tree of an image, from a class downwards."""
    found = parse_tree(routes, chosen=chosen)
    tree = Tree(layers=list(found.layers), nodes=[], edges=[])
    _add(tree, found.layers, found.root, None)
    return tree


def _add(tree: Tree, layers: tuple[str, ...], node: ParseNode, parent: int | None) -> None:
    """Append a node and all below it."""
    number, is_class = len(tree.nodes), parent is None
    top, left, height, width = node.window
    tree.nodes.append(
        Node(
            layer=layers.index(node.layer),
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
        _add(tree, layers, child, number)
