"""Capsule layers that add to what comes to them, so that many can stand on each other."""

from collections.abc import Mapping

from torch import Tensor, nn

from torchcaps.capsules import Capsules, check_are_capsules, normalise
from torchcaps.nn.layer import CapsuleLayer
from torchcaps.routing import RoutingResult


class ResidualCaps(nn.Module):
    r"""Capsule layers with a way around them: poses are added, activations averaged.

    With children :math:`(u, a)` and what the layers make of them :math:`(v, b)`, matrix capsules become

    .. math:: M' = u + v, \quad a' = (a + b) / 2

    Vector capsules, whose activations are lengths, keep them below 1: the direction of the sum, with the mean length,
    :math:`(u + v) / |u + v| \cdot (a + b) / 2`. An activation stays in [0, 1] and a pose has a path of gradient 1
    through any number of blocks. Give the layers a `CapsuleNorm`, so that every block adds poses of one size.

    Args:
        *layers: one after the other, such as ConvCaps2d with padding="same".
        shortcut: brings the children to the parents' shape where types or positions differ, such as
            `CapsulePool2d(2)` before a stride of 2 or a layer with a 1 x 1 window; None where they agree.

    Shapes:
        children: poses (B, H, W, C, K), activations (B, H, W, C); parents: those of the last layer

    Example:
        >>> import torch
        >>> from torchcaps.nn import CapsuleNorm, ConvCaps2d, EMRouting
        >>> layer = ConvCaps2d(
        ...     4, 4, 16, 16, 3, padding="same", pose="matrix", start="small", routing=EMRouting(), norm=CapsuleNorm(4)
        ... )
        >>> block = ResidualCaps(layer)
        >>> block(Capsules(torch.randn(2, 7, 7, 4, 16), torch.rand(2, 7, 7, 4))).poses.shape
        torch.Size([2, 7, 7, 4, 16])
    """

    def __init__(self, *layers: CapsuleLayer, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        if not layers or not all(isinstance(layer, CapsuleLayer) for layer in layers):
            raise TypeError(f"a residual block takes capsule layers, such as ConvCaps2d, got {layers!r}")
        self.layers = nn.ModuleList(layers)
        self.shortcut = shortcut

    def route(self, children: Capsules, *, return_trace: bool = False) -> tuple[Capsules, Mapping[str, RoutingResult]]:
        """The parents, and the results of the layers by their names within the block."""
        check_are_capsules(children)
        capsules, results = children, {}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, CapsuleLayer)
            results[f"layers.{number}"] = result = layer.route(capsules, return_trace=return_trace)
            capsules = result.capsules
        around = children if self.shortcut is None else self.shortcut(children)
        if around.poses.shape != capsules.poses.shape:
            raise ValueError(
                f"the layers make capsules of shape {tuple(capsules.poses.shape)} of children of shape "
                f"{tuple(around.poses.shape)}; use padding='same' and equal types and sizes, or give a shortcut"
            )
        last = self.layers[-1]
        assert isinstance(last, CapsuleLayer)
        return combined(around, capsules, are_lengths=activations_are_lengths(last)), results

    def forward(self, children: Capsules) -> Capsules:
        return self.route(children)[0]


def combined(first: Capsules, second: Capsules, *, are_lengths: bool) -> Capsules:
    """Poses added and activations averaged; where activations are lengths, the sum is brought to that length."""
    poses: Tensor = first.poses + second.poses
    activations = (first.activations + second.activations) / 2
    if not are_lengths:
        return Capsules(poses, activations)
    return Capsules.from_poses(normalise(poses) * activations.unsqueeze(-1))


def activations_are_lengths(layer: CapsuleLayer) -> bool:
    """Whether the parents of a layer are as active as they are long; a norm makes activations of logits."""
    return layer.norm is None and layer.routing.activations_are_lengths
