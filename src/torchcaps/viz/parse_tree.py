"""The parse tree of an image through a matrix network: which parts make up the class, layer by layer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.models import Model
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.nn import CapsuleLayer, EMRouting
from torchcaps.routing import RoutingResult
from torchcaps.viz.origins import seen_through
from torchcaps.viz.routed import with_iterations

LAYERS = ("primary", "conv1", "conv2", "class_capsules")  # from the image to the classes
BREADTH = (3, 2, 2)  # children that are kept of a class, of a capsule of conv2, of one of conv1


@dataclass(frozen=True, kw_only=True)
class ParseNode:
    """A capsule of an image and the strongest of its children.

    Attributes:
        layer: one of LAYERS.
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

    def to_dict(self) -> dict[str, Any]:
        """The tree as JSON can hold it."""
        return asdict(self)


@torch.inference_mode()
def parse_tree(
    model: Model, image: Tensor, *, chosen: int | None = None, breadth: Sequence[int] = BREADTH
) -> ParseNode:
    r"""From a class down to the primary capsules, always along the strongest couplings.

    What a child i gives to a parent j is :math:`c_{ij} a_i`, its coupling times its activation. From the class
    downwards every capsule hangs on that parent of the tree to which it gives most, and every parent keeps those that
    give most, no two of the same place: many types at one place see the same pixels. Where one iteration of EM leaves
    all couplings alike, those count that the next E-step would give: to which parents the votes fit.

    Args:
        model: a matrix network.
        image: (C, H, W), after preprocessing.
        chosen: number of the class at the root; by default the most active.
        breadth: how many children are kept of a class, of a capsule of the layer below, of one of the layer below that.
    """
    if not isinstance(model, MatrixCapsNet):
        raise ValueError(f"{model.name} has no layers of matrix capsules to climb down; use matrix-capsnet-small")
    if len(breadth) != len(LAYERS) - 1 or not all(isinstance(most, int) and most >= 1 for most in breadth):
        raise ValueError(f"breadth must be {len(LAYERS) - 1} positive integers, got {breadth!r}")
    model.eval()
    layers = routed_layers(model, image)
    activations_J = layers[-1].activations
    root = int(activations_J.argmax()) if chosen is None else chosen
    if not 0 <= root < len(activations_J):
        raise ValueError(f"chosen must be between 0 and {len(activations_J) - 1}, got {root}")
    found: list[dict[int, Link]] = [{root: Link(-1, 1.0, 1.0)}]
    for above, below, most in zip(layers[:0:-1], layers[-2::-1], breadth, strict=True):
        num_types = below.activations.shape[-1]
        found.append(strongest_children(above.coupling, below.activations.ravel(), list(found[-1]), most, num_types))
    children: dict[int, list[ParseNode]] = {}
    for depth, (layer, links) in enumerate(zip(layers, reversed(found), strict=True)):
        nodes: dict[int, list[ParseNode]] = {}
        for number, link in links.items():  # of one parent from the greatest share to the least
            node = new_node(model, LAYERS[depth], layer, number, link, children.get(number, []))
            nodes.setdefault(link.parent, []).append(node)
        children = nodes
    return children[-1][0]


@dataclass(frozen=True)
class RoutedLayer:
    """The capsules of one image in one layer and their couplings with those below.

    Attributes:
        activations: (H, W, types), or (J,) of the classes.
        coupling: (children, capsules), 0 where a capsule does not see a child; of the primary capsules None.
    """

    activations: np.ndarray
    coupling: np.ndarray | None


@dataclass(frozen=True)
class Link:
    """From a child to its parent in the tree."""

    parent: int
    coupling: float
    share: float


def routed_layers(model: MatrixCapsNet, image: Tensor) -> list[RoutedLayer]:
    """Route one image through the network; the layers from the primary capsules to the classes."""
    children = model.primary(model.features(model.pad(image[None].to(next(model.parameters()).device))))
    layers = [RoutedLayer(children.activations[0].cpu().numpy(), None)]
    for name in LAYERS[1:]:
        layer = getattr(model, name)
        result = layer.route(children)
        windows = layer.votes(children).windows
        seen_PS = None if windows is None else windows.children().numpy()
        num_children = children.activations[0].numel()
        coupling = telling_coupling(layer, children, result)
        layers.append(RoutedLayer(result.capsules.activations[0].cpu().numpy(), flat(coupling, seen_PS, num_children)))
        children = result.capsules
    return layers


def telling_coupling(layer: CapsuleLayer, children: Capsules, result: RoutingResult) -> Tensor:
    """The couplings of a routing; where all are alike, as EM with one iteration has them, those of its E-step.

    One iteration asks nobody which parent a vote fits. The E-step that would come next does.
    """
    routing = layer.routing
    if not isinstance(routing, EMRouting) or routing.options.get("num_iterations") != 1:
        return result.coupling
    return with_iterations(routing, 2)(layer.votes(children)).coupling


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
    model: MatrixCapsNet, name: str, layer: RoutedLayer, number: int, link: Link, children: Sequence[ParseNode]
) -> ParseNode:
    """The capsule of a layer with a flat number."""
    is_class = layer.activations.ndim == 1
    row, column, kind = (0, 0, number) if is_class else np.unravel_index(number, layer.activations.shape)
    return ParseNode(
        layer=name,
        row=int(row),
        column=int(column),
        type=int(kind),
        label=model.labels[number] if is_class else "",
        activation=float(layer.activations.flat[number]),
        coupling=link.coupling,
        share=link.share,
        window=(0, 0, *model.image_shape[1:]) if is_class else window_of(model, name, (int(row), int(column))),
        children=tuple(children),
    )


def window_of(model: MatrixCapsNet, name: str, place: tuple[int, int]) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the pixels that a capsule of a convolutional layer sees, within the image."""
    window = seen_through(model, (model.conv1, model.conv2)[: LAYERS.index(name)])
    corners, sizes = [], []
    for axis, number in enumerate(place):
        first = window.corner[axis] + number * window.step[axis]
        start, end = max(first, 0), min(first + window.size[axis], model.image_shape[1 + axis])
        corners.append(start)
        sizes.append(max(end - start, 0))
    return corners[0], corners[1], sizes[0], sizes[1]
