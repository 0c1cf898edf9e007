"""The parse tree of an image: which parts make up the class, layer by layer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.inspection.origins import seen_window
from torchcaps.inspection.routed import with_iterations
from torchcaps.inspection.routes import Routes
from torchcaps.models import ImageModel
from torchcaps.nn import EMRouting, Routing
from torchcaps.routing import RoutingResult
from torchcaps.windows import GridWindow

FIRST = "primary"  # name of the layer of the first capsules
BREADTH_OF_CLASS, BREADTH = 3, 2  # children that are kept of a class, and of any other capsule


@dataclass(frozen=True, kw_only=True)
class ParseNode:
    """A capsule of an image and the strongest of its children.

    Attributes:
        layer: one of the layers of the tree.
        row, column: place in the map of its layer, 0 for a class.
        type: number of its type; of a class, its number.
        label: name of a class, else "".
        activation: between 0 and 1.
        coupling: of the capsule with its parent in the tree; 1 for the root.
        share: part of the parent's mass that comes from it: coupling times activation, over the sum of these over all
            children of the parent; 1 for the root.
        window: (top, left, height, width) in pixels of the image that the capsule sees.
        children: from the greatest share to the least.
    """

    layer: str
    row: int
    column: int
    type: int
    label: str
    activation: float
    coupling: float
    share: float
    window: tuple[int, int, int, int]
    children: tuple["ParseNode", ...]


@dataclass(frozen=True, kw_only=True)
class ParseTree:
    """Which parts make up a class.

    Attributes:
        layers: names, from the first capsules to the classes.
        root: the class.
    """

    layers: tuple[str, ...]
    root: ParseNode

    def to_dict(self) -> dict[str, Any]:
        """The tree as JSON can hold it."""
        return asdict(self)


@torch.inference_mode()
def parse_tree(routes: Routes, *, chosen: int | None = None, breadth: Sequence[int] | None = None) -> ParseTree:
    r"""From a class down to the first capsules, always along the strongest couplings.

    What a child i gives to a parent j is :math:`c_{ij} a_i`, its coupling times its activation. From the class
    downwards every capsule hangs on that parent of the tree to which it gives most, and every parent keeps those that
    give most, no two of the same place: many types at one place see the same pixels. Where one iteration of EM leaves
    all couplings alike, those count that the next E-step would give: to which parents the votes fit.

    Args:
        routes: one image on its way through at least two routed layers, convolutional ones below the classes.
        chosen: number of the class at the root; by default the most active.
        breadth: how many children are kept of a class, of a capsule of the layer below, and so on; by default
            3, then 2.
    """
    layers = routed_layers(routes)
    breadth = (BREADTH_OF_CLASS, *[BREADTH] * (len(layers) - 2)) if breadth is None else breadth
    if len(breadth) != len(layers) - 1 or not all(isinstance(most, int) and most >= 1 for most in breadth):
        raise ValueError(f"breadth must be {len(layers) - 1} positive integers, got {breadth!r}")
    activations_J = layers[-1].activations
    root = int(activations_J.argmax()) if chosen is None else chosen
    if not 0 <= root < len(activations_J):
        raise ValueError(f"chosen must be between 0 and {len(activations_J) - 1}, got {root}")
    found: list[dict[int, Link]] = [{root: Link(-1, 1.0, 1.0)}]
    for above, below, most in zip(layers[:0:-1], layers[-2::-1], breadth, strict=True):
        num_types = below.activations.shape[-1]
        found.append(strongest_children(above.coupling, below.activations.ravel(), list(found[-1]), most, num_types))
    model = routes.model
    assert isinstance(model, ImageModel)
    children: dict[int, list[ParseNode]] = {}
    for layer, links in zip(layers, reversed(found), strict=True):
        nodes: dict[int, list[ParseNode]] = {}
        for number, link in links.items():  # of one parent from the greatest share to the least
            node = new_node(model, layer, number, link, children.get(number, []))
            nodes.setdefault(link.parent, []).append(node)
        children = nodes
    return ParseTree(layers=tuple(layer.name for layer in layers), root=children[-1][0])


@dataclass(frozen=True)
class RoutedLayer:
    """The capsules of one image in one layer and their couplings with those below.

    Attributes:
        name: of the layer.
        activations: (H, W, types), or (J,) of the classes.
        window: what a place sees of the image; None of the classes.
        coupling: (children, capsules), 0 where a capsule does not see a child; of the first capsules None.
    """

    name: str
    activations: np.ndarray
    window: GridWindow | None
    coupling: np.ndarray | None


@dataclass(frozen=True)
class Link:
    """From a child to its parent in the tree."""

    parent: int
    coupling: float
    share: float


def routed_layers(routes: Routes) -> list[RoutedLayer]:
    """The layers of a network from the first capsules to the classes, as they were routed."""
    results, name = routes.results, routes.model.name
    if len(results) < 2:
        raise ValueError(f"{name} has one routed layer; a tree needs two at least, as matrix-capsnet-small has them")
    first = next(iter(results.values())).children
    assert first is not None
    layers = [RoutedLayer(FIRST, first.activations[0].cpu().numpy(), seen_window(routes, 0), None)]
    for depth, (name_of_layer, result) in enumerate(results.items(), 1):
        votes, children, below = result.votes, result.children, layers[-1].activations
        assert votes is not None
        assert children is not None
        if children.activations.shape[1:] != below.shape or below.ndim != 3:
            raise ValueError(f"{name} has layers that do not stand on each other's grid; a tree cannot be climbed down")
        seen_PS = None if votes.windows is None else votes.windows.children().numpy()
        coupling = flat(telling_coupling(routes.layer(name_of_layer).routing, result), seen_PS, votes.num_children)
        if votes.windows is not None:
            coupling = coupling[votes.windows.inside().numpy()]
        window = None if depth == len(results) else seen_window(routes, depth)
        layers.append(RoutedLayer(name_of_layer, result.capsules.activations[0].cpu().numpy(), window, coupling))
    return layers


def telling_coupling(routing: Routing, result: RoutingResult) -> Tensor:
    """The couplings of a routing; where all are alike, as EM with one iteration has them, those of its E-step.

    One iteration asks nobody which parent a vote fits. The E-step that would come next does.
    """
    if not isinstance(routing, EMRouting) or routing.options.get("num_iterations") != 1:
        return result.coupling
    return with_iterations(routing, 2)(result.votes).coupling


def flat(result_coupling: Tensor, seen_PS: np.ndarray | None, num_children: int) -> np.ndarray:
    """The couplings of the first example by child and parent, whether the parents see all children or windows of them.

    Shapes:
        result_coupling: (B, I, J), or (B, OH, OW, slots, J); seen: (OH * OW, slots) -> (I, OH * OW * J)
    """
    coupling = result_coupling[0].cpu().numpy()
    if seen_PS is None:
        return coupling
    num_places, num_parents = len(seen_PS), coupling.shape[-1]
    coupling_IPJ = np.zeros((num_children, num_places, num_parents), coupling.dtype)
    coupling_IPJ[seen_PS, np.arange(num_places)[:, None]] = coupling.reshape(num_places, -1, num_parents)
    return coupling_IPJ.reshape(num_children, -1)


def strongest_children(
    coupling_IJ: np.ndarray | None, activations_I: np.ndarray, parents: list[int], most: int, num_types: int
) -> dict[int, Link]:
    """Of each parent, up to `most` children of different places that give it more than any other of these parents."""
    assert coupling_IJ is not None
    given_IP = coupling_IJ[:, parents] * activations_I[:, None]
    share_IP = given_IP / np.maximum(given_IP.sum(0), 1e-30)
    owners_I = given_IP.argmax(1)
    links: dict[int, Link] = {}
    for column, parent in enumerate(parents):
        own = np.flatnonzero((owners_I == column) & (given_IP[:, column] > 0))
        own = own[np.argsort(-given_IP[own, column], kind="stable")]
        _, first = np.unique(own // num_types, return_index=True)  # the strongest of each place
        for child in own[np.sort(first)][:most].tolist():
            links[child] = Link(parent, float(coupling_IJ[child, parent]), float(share_IP[child, column]))
    return links


def new_node(
    model: ImageModel, layer: RoutedLayer, number: int, link: Link, children: Sequence[ParseNode]
) -> ParseNode:
    """The capsule of a layer with a flat number."""
    height, width = model.image_shape[1:]
    row, column, kind, window = 0, 0, number, (0, 0, height, width)
    if layer.window is not None:
        row, column, kind = (int(place) for place in np.unravel_index(number, layer.activations.shape))
        window = layer.window.at((row, column), (height, width))
    return ParseNode(
        layer=layer.name,
        row=row,
        column=column,
        type=kind,
        label=model.labels[number] if layer.window is None else "",
        activation=float(layer.activations.flat[number]),
        coupling=link.coupling,
        share=link.share,
        window=window,
        children=tuple(children),
    )
