"""Noise on capsules in training, so that a network does not learn single children by heart."""

import torch
from torch import nn

from torchcaps.capsules import Capsules, check_are_capsules


class CapsuleNoise(nn.Module):
    """Capsules drop out whole, and what is left of them moves a little; nothing happens outside training.

    A capsule that drops out has activation 0, hence no vote in EM routing; the activations of the others grow by
    1 / (1 - dropout), so that the mass of a layer stays what it is on average. Noise on poses is noise on votes,
    V = (M + E) W, which no kernel has to form. It is measured by the poses themselves, so that no layer can escape it
    by larger numbers.

    Args:
        dropout: share of the capsules that drop out.
        drop_poses: poses drop out and grow with the activations, for routings that do not look at these.
        pose_noise: deviation of the normal noise on poses, as a share of the root mean square of all their entries.

    Shapes:
        capsules: poses (B, ..., K), activations (B, ...), the same out

    Example:
        >>> capsules = Capsules(torch.ones(2, 6, 16), torch.ones(2, 6))
        >>> CapsuleNoise(dropout=0.5).eval()(capsules) is capsules
        True
    """

    def __init__(self, *, dropout: float = 0.0, pose_noise: float = 0.0, drop_poses: bool = False) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a share in [0, 1), got {dropout!r}")
        if not 0 <= pose_noise < float("inf"):
            raise ValueError(f"pose_noise must be a finite number of at least 0, got {pose_noise!r}")
        self.dropout, self.pose_noise, self.drop_poses = dropout, pose_noise, drop_poses

    def forward(self, capsules: Capsules) -> Capsules:
        check_are_capsules(capsules)
        if not self.training or not (self.dropout or self.pose_noise):
            return capsules
        poses, activations = capsules
        if self.pose_noise:
            scale = self.pose_noise * poses.detach().square().mean().sqrt()
            poses = poses + scale * torch.randn_like(poses)
        share = nn.functional.dropout(torch.ones_like(activations), self.dropout)
        return Capsules(poses * share.unsqueeze(-1) if self.drop_poses else poses, activations * share)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, pose_noise={self.pose_noise}"
