"""The first capsules of a text, and which of its positions are real."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, squash
from torchcaps.checks import check_count, check_positive

FIRST, SECOND = 1_000_003, 7_368_787  # primes that spread pairs of words over counters
START_GAIN = 4.0  # long poses from the start: squash is quadratic where they are short, and hardly lets gradients pass


class NgramCaps(nn.Module):
    """Capsules of the n-grams of a text (Zhao et al. 2018): a convolution over n words, ReLU, poses, squash.

    Args:
        in_channels: entries of a word's vector.
        channels: B, features of an n-gram.
        out_types: C, capsule types per position.
        out_size: d, entries of a pose.
        ngram_size: K1, words of an n-gram.
        squash_k: k of the squash.

    Shapes:
        words: (B, T, in_channels)
        capsules: poses (B, T - K1 + 1, types, d), activations alike

    Example:
        >>> NgramCaps(100, 32, 8, 16, ngram_size=3)(torch.randn(2, 10, 100)).poses.shape
        torch.Size([2, 8, 8, 16])
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        out_types: int,
        out_size: int,
        ngram_size: int,
        *,
        squash_k: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_count("in_channels", in_channels)
        self.out_types, self.out_size = check_count("out_types", out_types), check_count("out_size", out_size)
        self.ngram_size, self.squash_k = check_count("ngram_size", ngram_size), check_positive("squash_k", squash_k)
        self.conv = nn.Conv1d(in_channels, check_count("channels", channels), ngram_size, device=device, dtype=dtype)
        self.to_poses = nn.Linear(channels, out_types * out_size, device=device, dtype=dtype)
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
        poses = self.to_poses(features).unflatten(-1, (self.out_types, self.out_size))
        return Capsules.from_poses(squash(poses, self.squash_k))

    def extra_repr(self) -> str:
        return f"out_types={self.out_types}, out_size={self.out_size}, ngram_size={self.ngram_size}"


class TextLSTM(nn.Module):
    """A bidirectional LSTM over texts of different lengths; what it says of a word does not depend on padding.

    Args:
        in_size: entries of a word's embedding.
        hidden_size: features in each direction.

    Shapes:
        words: (B, T, in_size); lengths: (B,) -> (B, T, 2 hidden_size), 0 beyond a text
    """

    def __init__(self, in_size: int, hidden_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(in_size, hidden_size, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with torch.autocast(words.device.type, enabled=False):  # not every CPU has an LSTM in bfloat16
            states, _ = self.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=words.shape[1])[0]


class WordEvidence(nn.Module):
    r"""What each word says for each class, as counted in the training texts: the log-odds of naive Bayes.

    .. math:: e_{wj} = \ln \frac{n_{wj} + 1}{N_j + V} - \ln \frac{n_w - n_{wj} + 1}{N - N_j + V}

    with n the number of texts that hold word w (and have class j), N their sums over the V words. In training a text is
    taken out of the counts before its own words are judged: otherwise a word that occurs once would tell its class for
    certain, and a network would trust it.

    Args:
        num_tokens: V; token 0 is padding, which says nothing.
        num_classes: J.

    Shapes:
        tokens: (B, T); targets: (B,) or multi-hot (B, J), in training
        evidence: (B, T, J)
    """

    with_class: Tensor
    total: Tensor

    def __init__(self, num_tokens: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("with_class", torch.zeros(num_tokens, num_classes))
        self.register_buffer("total", torch.zeros(num_tokens, 1))

    @torch.no_grad()
    def count(self, texts: Sequence[np.ndarray], targets: Tensor) -> None:
        """Add texts, given as the numbers of their tokens, with their classes (n,) or (n, J)."""
        for numbers, target in zip(texts, self.multi_hot(targets.to(self.total.device)), strict=True):
            words = torch.from_numpy(np.unique(numbers[numbers != 0])).to(target.device)
            self.with_class[words] += target
            self.total[words] += 1

    def multi_hot(self, targets: Tensor) -> Tensor:
        """Classes (n,) or (n, J) as (n, J) of 0 and 1."""
        if targets.dim() == 1:
            targets = nn.functional.one_hot(targets, self.num_classes)
        return targets.to(self.total.dtype)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        is_word = (tokens != 0).unsqueeze(-1).to(self.total.dtype)
        with_class, total = self.with_class[tokens], self.total[tokens]
        if self.training and targets is not None:
            with_class = (with_class - self.multi_hot(targets).unsqueeze(1)).clamp_min(0)
            total = (total - 1).clamp_min(0)
        without = (total - with_class).clamp_min(0)
        sums, num_tokens = self.with_class.sum(0), len(self.total)
        odds = ((with_class + 1) / (without + 1)).log()
        prior = ((sums + num_tokens) / (self.total.sum() - sums + num_tokens)).log()
        return (odds - prior) * is_word

    def extra_repr(self) -> str:
        return f"num_tokens={len(self.total)}, num_classes={self.num_classes}"


class PairEvidence(WordEvidence):
    """The same for pairs of neighbouring words: position t has what the words of t and t + 1 say together.

    Pairs share counters by a hash, so that there are as many as one likes and none has to be known beforehand.

    Args:
        num_counters: one of them for "no pair".
        num_classes: J.
    """

    def __init__(self, num_counters: int, num_classes: int) -> None:
        super().__init__(check_count("num_counters", num_counters, least=2), num_classes)

    def count(self, texts: Sequence[np.ndarray], targets: Tensor) -> None:
        super().count([self.pairs(torch.from_numpy(np.asarray(text, np.int64))).numpy() for text in texts], targets)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        return super().forward(self.pairs(tokens), targets)

    def pairs(self, tokens: Tensor) -> Tensor:
        """The counter of each pair, 0 where there is none: (..., T) -> (..., T)."""
        following = nn.functional.pad(tokens[..., 1:], (0, 1))
        numbers = (tokens * FIRST + following * SECOND) % (len(self.total) - 1) + 1
        return torch.where((tokens != 0) & (following != 0), numbers, 0)


def window_mask(lengths: Tensor, num_positions: int, window: int) -> Tensor:
    """Which windows of `window` words lie within their text: position p iff p + window <= length.

    Shapes:
        lengths: (B,) -> (B, num_positions)
    """
    return torch.arange(num_positions, device=lengths.device) + window <= lengths.unsqueeze(-1)
