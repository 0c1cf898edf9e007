"""Class capsules: every child of a feature map votes for every class."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.checks import check_count
from torchcaps.nn.layer import CapsuleLayer
from torchcaps.nn.norm import CapsuleNorm
from torchcaps.routing import Routing
from torchcaps.votes import ClassVotes
from torchcaps.votes.layers import check_coordinates
from torchcaps.votes.sharing import takes_old_name


class ClassCaps(CapsuleLayer):
    """All positions of one child type share their transformation; a child's place is added to its vote.

    Args:
        in_types: child types per position.
        out_capsules: J, one per class.
        in_size, out_size: entries of a pose (16 for 4 x 4 matrices).
        coordinates: add ((row + 0.5) / H, (column + 0.5) / W) to the votes, times this number if it is one. Made for
            EM, whose parents are means; where they are sums (dynamic and K-Means routing) the coordinates of many
            children add up and every class starts fully active: leave them out there.
        routing, pose, sharing, bias, normalise_weights, start, weight_std, norm: see CapsuleLayer.

    Shapes:
        children: poses (B, H, W, C, K) or (B, T, C, K), activations alike; mask of positions or of children
        parents: poses (B, J, D), activations (B, J)

    Example:
        >>> from torchcaps.nn import EMRouting
        >>> layer = ClassCaps(8, 5, 16, 16, pose="matrix", routing=EMRouting())
        >>> layer(Capsules(torch.randn(2, 4, 4, 8, 16), torch.rand(2, 4, 4, 8))).activations.shape
        torch.Size([2, 5])
    """

    @takes_old_name
    def __init__(
        self,
        in_types: int,
        out_capsules: int,
        in_size: int,
        out_size: int,
        *,
        routing: Routing,
        coordinates: bool | float = True,
        pose: str = "vector",
        sharing: str = "full",
        bias: bool = False,
        normalise_weights: bool | None = None,
        start: str | None = None,
        weight_std: float | None = None,
        norm: CapsuleNorm | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.in_types, self.out_capsules = check_count("in_types", in_types), check_count("out_capsules", out_capsules)
        self.child_types = in_types
        self.coordinates = check_coordinates(coordinates)
        super().__init__(
            (in_types,),
            None,
            out_capsules,
            in_size,
            out_size,
            routing=routing,
            pose=pose,
            sharing=sharing,
            bias=bias,
            normalise_weights=normalise_weights,
            start=start,
            weight_std=weight_std,
            norm=norm,
            device=device,
            dtype=dtype,
        )

    def votes(self, children: Capsules, *, mask: Tensor | None = None) -> ClassVotes:
        self.check_poses(children.poses, *("T" if children.poses.dim() == 4 else "HW"), self.in_types)
        return ClassVotes(
            children,
            self.transformation(),
            coordinates=self.coordinates,
            pose=self.pose,
            sharing=self.sharing,
            bias=self.bias,
            mask=mask,
        )

    def extra_repr(self) -> str:
        coordinates = "" if self.coordinates is True else f"coordinates={self.coordinates}, "
        return f"{self.in_types} types -> {self.out_capsules} classes, {coordinates}{super().extra_repr()}"
