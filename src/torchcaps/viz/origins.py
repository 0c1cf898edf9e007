"""Where in the image the votes of a class come from."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from torch import nn

from torchcaps.models import Model
from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.nn import ConvCaps2d
from torchcaps.viz.report import to_picture
from torchcaps.viz.routed import ClassRouting


def vote_origins(routed: ClassRouting) -> Figure:
    """The image, and the share of each place of the children's grid in the winning class and in the second.

    A place of the grid sees a window of the image; neighbouring windows overlap.

    Args:
        routed: one image on its way into the classes.
    """
    chosen = routed.strongest[:2]
    maps = [shares(routed, index) for index in chosen]
    most = max(float(np.abs(found).max()) for found in maps)
    figure = Figure(figsize=(3.4 + 3.3 * len(maps), 3.9), layout="constrained")
    first, *panels = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    first.imshow(to_picture(routed.image), cmap="gray", vmin=0, vmax=1)
    first.set(title="image", xlabel="pixels")
    for axes, found, index in zip(panels, maps, chosen, strict=True):
        shown = axes.imshow(found, cmap="PuOr_r", vmin=-most, vmax=most)
        for (row, column), share in np.ndenumerate(found):
            if found.size <= 64:
                colour = "white" if abs(share) > 0.6 * most else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
        activation = routed.activations[-1, index]
        axes.set(title=f"votes for {routed.labels[index]}\n(activation {activation:.2f})", xlabel="column of capsules")
        axes.set(xticks=range(found.shape[1]), yticks=range(found.shape[0]), ylabel="row of capsules")
    figure.colorbar(shown, ax=panels, label="share of the class's pose, %", pad=0.02)
    figure.suptitle(f"Where votes come from: {routed.title}", fontsize=12)
    return figure


def shares(routed: ClassRouting, chosen: int) -> np.ndarray:
    r"""Per cent of the weighted sum of the votes for a class that come from each place; what opposes it is negative.

    With :math:`s_j = \sum_i c_{ij} w_i \hat u_{ij}` the length :math:`|s_j|` is the sum over children of
    :math:`c_{ij} w_i \langle \hat u_{ij}, s_j / |s_j| \rangle`; here the types of a place are added up.

    Shapes:
        (height, width) of the children's grid
    """
    weighted_ID = routed.masses[-1, :, chosen, None] * routed.votes[:, chosen]
    total_D = weighted_ID.sum(0)
    parts_I = weighted_ID @ total_D / max(float(total_D @ total_D), 1e-30)
    return 100 * parts_I.reshape(routed.grid).sum(-1)


class GridWindow(NamedTuple):
    """What the first place of the children's grid sees of the image, and how far the next one is, in pixels.

    Pairs are (down, across). Windows overlap, and of padded images they may reach beyond the border.
    """

    corner: tuple[int, int]
    size: tuple[int, int]
    step: tuple[int, int]


def grid_window(model: Model) -> GridWindow:
    """Which part of the image a place of the grid of a class layer's children sees.

    Args:
        model: a capsule network of images.
    """
    if not isinstance(model, VectorCapsNet | MatrixCapsNet):
        raise ValueError(f"{model.name} has no grid of capsules below its classes")
    return seen_through(model, (model.conv1, model.conv2) if isinstance(model, MatrixCapsNet) else ())


def seen_through(model: VectorCapsNet | MatrixCapsNet, capsule_layers: Sequence[ConvCaps2d]) -> GridWindow:
    """Which part of the image is seen from above the first capsules and some convolutional capsule layers on them."""
    modules = (*model.features.modules(), *model.primary.modules())
    layers = [*(layer for layer in modules if isinstance(layer, nn.Conv2d)), *capsule_layers]
    found = []
    for axis in range(2):
        size, step = 1, 1
        corner = -((model.padded_shape[1 + axis] - model.image_shape[1 + axis]) // 2)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                corner -= int(layer.padding[axis]) * step
            size += (layer.kernel_size[axis] - 1) * step
            step *= layer.stride[axis]
        found.append((corner, size, step))
    return GridWindow(*zip(*found, strict=True))
