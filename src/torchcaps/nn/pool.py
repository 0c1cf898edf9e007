"""Fewer positions: what stands for the capsules of a window, type by type."""

from torch import Tensor, nn

from torchcaps.capsules import Capsules, check_are_capsules
from torchcaps.checks import check_choice
from torchcaps.windows import Windows, per_axis

KINDS = ("max", "mean")


class CapsulePool2d(nn.Module):
    """One capsule for each window and type: the most active one, or the mean of all by their activations.

    With children (u_i, a_i) of a window, "max" takes the pose and the activation of the largest a_i; "mean" takes
    sum_i a_i u_i / sum_i a_i and the mean of the a_i. Where all activations are 0 every child counts the same.
    There are no votes and nothing is learned: it is what routing is compared with, and a way to fewer positions.

    Args:
        kernel_size: of a window; None for the whole map, which leaves one position.
        stride: None for that of windows that do not overlap.
        kind: "max" or "mean".

    Shapes:
        capsules: poses (B, H, W, C, K), activations (B, H, W, C) -> (B, OH, OW, C, K), (B, OH, OW, C)

    Example:
        >>> import torch
        >>> capsules = Capsules(torch.randn(2, 8, 8, 4, 16), torch.rand(2, 8, 8, 4))
        >>> CapsulePool2d(2)(capsules).poses.shape, CapsulePool2d(None, kind="mean")(capsules).activations.shape
        (torch.Size([2, 4, 4, 4, 16]), torch.Size([2, 1, 1, 4]))
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int] | None = 2,
        stride: int | tuple[int, int] | None = None,
        *,
        kind: str = "max",
    ) -> None:
        super().__init__()
        self.kernel_size = None if kernel_size is None else per_axis("kernel_size", kernel_size, 2)
        if kernel_size is None and stride is not None:
            raise ValueError("a window of the whole map has no stride; leave stride out or give kernel_size")
        self.stride = self.kernel_size if stride is None else per_axis("stride", stride, 2)
        self.kind = check_choice("kind", kind, KINDS)

    def forward(self, capsules: Capsules) -> Capsules:
        check_are_capsules(capsules)
        poses_BHWCK, activations_BHWC = capsules
        if poses_BHWCK.dim() != 5:
            raise ValueError(f"poses must have shape (B, H, W, C, K), got {tuple(poses_BHWCK.shape)}")
        spatial = tuple(poses_BHWCK.shape[1:3])
        windows = Windows(spatial, 1, self.kernel_size or spatial, self.stride or spatial)
        poses_BSNCK = windows.gather(poses_BHWCK.flatten(1, 2)).flatten(1, 2)
        activations_BSNC = windows.gather(activations_BHWC.flatten(1, 2)).flatten(1, 2)
        pooled = _most_active if self.kind == "max" else _mean
        poses, activations = pooled(poses_BSNCK, activations_BSNC)
        return Capsules(poses.unflatten(1, windows.output), activations.unflatten(1, windows.output))

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, kind={self.kind!r}"


def _most_active(poses_BSNCK: Tensor, activations_BSNC: Tensor) -> tuple[Tensor, Tensor]:
    activations_BSC, chosen = activations_BSNC.max(2)
    index = chosen.unsqueeze(2).unsqueeze(-1).expand(*chosen.shape[:2], 1, *poses_BSNCK.shape[3:])
    return poses_BSNCK.gather(2, index).squeeze(2), activations_BSC


def _mean(poses_BSNCK: Tensor, activations_BSNC: Tensor) -> tuple[Tensor, Tensor]:
    total_BS1C = activations_BSNC.sum(2, keepdim=True)
    is_nothing = total_BS1C <= 1e-19  # its inverse would overflow in gradients
    share = activations_BSNC / total_BS1C.masked_fill(is_nothing, 1.0)
    share = share.masked_fill(is_nothing, 1 / activations_BSNC.shape[2])
    return (poses_BSNCK * share.unsqueeze(-1)).sum(2), activations_BSNC.mean(2)
