"""The first capsules of a text, and which of its positions are real."""

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, squash
from torchcaps.checks import check_count, check_positive

START_GAIN = 4.0  # long poses from the start: squash is quadratic where they are short, and hardly lets gradients pass


class NgramCaps(nn.Module):
    """Capsules of the n-grams of a text (Zhao et al. 2018): a convolution over n words, ReLU, poses, squash.

    Args:
        in_size: entries of a word's embedding.
        channels: B, features of an n-gram.
        num_types: C, capsule types per position.
        pose_size: d.
        ngram_size: K1, words of an n-gram.
        squash_k: k of the squash.

    Shapes:
        words: (B, T, in_size)
        capsules: poses (B, T - K1 + 1, types, d), activations alike

    Example:
        >>> NgramCaps(100, 32, 8, 16, ngram_size=3)(torch.randn(2, 10, 100)).poses.shape
        torch.Size([2, 8, 8, 16])
    """

    def __init__(
        self,
        in_size: int,
        channels: int,
        num_types: int,
        pose_size: int,
        ngram_size: int,
        *,
        squash_k: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_types, self.pose_size = check_count("num_types", num_types), check_count("pose_size", pose_size)
        self.ngram_size, self.squash_k = check_count("ngram_size", ngram_size), check_positive("squash_k", squash_k)
        self.conv = nn.Conv1d(in_size, channels, ngram_size, device=device, dtype=dtype)
        self.to_poses = nn.Linear(channels, num_types * pose_size, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew, without biases: they would give all capsules of a type one direction, whatever the words."""
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        nn.init.normal_(self.to_poses.weight, std=START_GAIN / math.sqrt(self.to_poses.in_features))
        for bias in (self.conv.bias, self.to_poses.bias):
            assert bias is not None
            nn.init.zeros_(bias)

    def forward(self, words: Tensor) -> Capsules:
        features = self.conv(words.transpose(1, 2)).relu().transpose(1, 2)
        poses = self.to_poses(features).unflatten(-1, (self.num_types, self.pose_size))
        return Capsules.from_poses(squash(poses, self.squash_k))

    def extra_repr(self) -> str:
        return f"num_types={self.num_types}, pose_size={self.pose_size}, ngram_size={self.ngram_size}"


def window_mask(lengths: Tensor, num_positions: int, window: int) -> Tensor:
    """Which windows of `window` words lie within their text: position p iff p + window <= length.

    Shapes:
        lengths: (B,) -> (B, num_positions)
    """
    return torch.arange(num_positions, device=lengths.device) + window <= lengths.unsqueeze(-1)
