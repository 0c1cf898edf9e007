"""Dense capsule layers: every child votes for every parent."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.checks import check_count
from torchcaps.nn.layer import CapsuleLayer
from torchcaps.nn.norm import CapsuleNorm
from torchcaps.routing import Routing
from torchcaps.votes import DenseVotes
from torchcaps.votes.sharing import takes_old_name


class DenseCaps(CapsuleLayer):
    """Every child votes for every parent with its own transformation, or with shared ones.

    Children may lie on any axes between batch and pose: a feature map is flattened.

    Args:
        in_capsules: I; None with shared weights, where the number of children may vary.
        out_capsules: J.
        in_size: K, entries of a child's pose (16 for 4 x 4 matrices).
        out_size: D, entries of a parent's pose.
        routing, pose, sharing, bias, normalise_weights, start, weight_std, norm: see CapsuleLayer.

    Shapes:
        children: poses (B, ..., K), activations (B, ...); mask (B, ...), False = padding
        parents: poses (B, J, D), activations (B, J)

    Example:
        >>> from torchcaps.nn import DynamicRouting
        >>> layer = DenseCaps(6, 3, 8, 16, routing=DynamicRouting())
        >>> layer(Capsules.from_poses(torch.randn(2, 6, 8))).poses.shape
        torch.Size([2, 3, 16])
    """

    @takes_old_name
    def __init__(
        self,
        in_capsules: int | None,
        out_capsules: int,
        in_size: int,
        out_size: int,
        *,
        routing: Routing,
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
        if in_capsules is None and sharing != "shared":
            raise ValueError(f"{sharing} weights need in_capsules; only shared weights take any number of children")
        owners = () if in_capsules is None else (check_count("in_capsules", in_capsules),)
        self.in_capsules, self.out_capsules = in_capsules, check_count("out_capsules", out_capsules)
        super().__init__(
            owners,
            in_capsules,
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

    def votes(self, children: Capsules, *, mask: Tensor | None = None) -> DenseVotes:
        children = children.flatten()
        fixed = None if self.sharing == "shared" else self.in_capsules
        self.check_poses(children.poses, "I" if fixed is None else fixed)
        return DenseVotes(
            children,
            self.transformation(),
            pose=self.pose,
            sharing=self.sharing,
            bias=self.bias,
            mask=None if mask is None else mask.flatten(1),
        )

    def extra_repr(self) -> str:
        return f"{self.in_capsules or 'any'} -> {self.out_capsules} capsules, {super().extra_repr()}"


DigitCaps = DenseCaps
