"""What text capsules stand beside: Kim's CNN, a bidirectional LSTM, and capsules without routing."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_choice
from torchcaps.models.base import ModelOutput
from torchcaps.models.registry import register_model
from torchcaps.models.text_base import TextModel
from torchcaps.nn import NgramCaps
from torchcaps.nn.text import TextLSTM, window_mask

POOLINGS = ("mean", "attention", "first")


@register_model("text-cnn")
class KimCNN(TextModel):
    """Convolutions over 3, 4 and 5 words, the largest value of each feature, dropout, a linear layer (Kim 2014).

    Example:
        >>> KimCNN(num_tokens=50, num_classes=2)(torch.randint(1, 50, (4, 9))).scores.shape
        torch.Size([4, 2])
    """

    default_loss = "cross_entropy"
    gives_activations = False

    def __init__(
        self,
        *,
        ngram_sizes: tuple[int, ...] = (3, 4, 5),
        channels: int = 100,
        dropout: float = 0.5,
        word_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(
            ngram_sizes=list(ngram_sizes), channels=channels, dropout=dropout, word_dropout=word_dropout, **options
        )
        self.convolutions = nn.ModuleList(nn.Conv1d(self.word_size, channels, ngram) for ngram in ngram_sizes)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(channels * len(self.convolutions), self.num_classes)
        )
        self.ngram_sizes, self.least_length = tuple(ngram_sizes), max(ngram_sizes)

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        words, lengths = self.embed(tokens, classes)
        features = [
            largest(conv(words.transpose(1, 2)).relu(), lengths, size)
            for conv, size in zip(self.convolutions, self.ngram_sizes, strict=True)
        ]
        return ModelOutput(self.classifier(torch.cat(features, -1)))


@register_model("text-no-routing")
class TextNoRouting(TextModel):
    """The n-gram capsules of Capsule-A, the largest entries of their poses, and a linear layer: no routing."""

    default_loss = "cross_entropy"
    gives_activations = False

    def __init__(
        self,
        *,
        ngram_size: int = 3,
        channels: int = 32,
        num_types: int = 32,
        pose_size: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(ngram_size=ngram_size, channels=channels, num_types=num_types, pose_size=pose_size, **options)
        self.ngrams = NgramCaps(self.word_size, channels, num_types, pose_size, ngram_size)
        self.classifier = nn.Linear(num_types * pose_size, self.num_classes)
        self.least_length = ngram_size

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        words, lengths = self.embed(tokens, classes)
        poses = self.ngrams(words).poses.flatten(2)
        return ModelOutput(self.classifier(largest(poses.transpose(1, 2), lengths, self.ngrams.ngram_size)))


@register_model("text-bilstm")
class BiLSTM(TextModel):
    """A bidirectional LSTM; the classes see the largest value of each of its features.

    Example:
        >>> BiLSTM(num_tokens=50, num_classes=2)(torch.randint(1, 50, (4, 9))).scores.shape
        torch.Size([4, 2])
    """

    default_loss = "cross_entropy"
    gives_activations = False

    def __init__(self, *, hidden_size: int = 100, dropout: float = 0.5, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, dropout=dropout, **options)
        self.lstm = TextLSTM(self.word_size, hidden_size)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * hidden_size, self.num_classes))

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        words, lengths = self.embed(tokens, classes)
        states = self.lstm(words, lengths)
        return ModelOutput(self.classifier(largest(states.transpose(1, 2), lengths)))


@register_model("text-pooling")
class TextPooling(TextModel):
    """One vector of a text, a mean of its words or its first special token, and a linear layer: no capsules.

    Args:
        pooling: "mean" of the words; "attention", a mean whose weights are learned; or "first", what an encoder says of
            the special token before the text.
        **options: see TextModel.

    Example:
        >>> TextPooling(num_tokens=50, num_classes=2)(torch.randint(1, 50, (4, 9))).scores.shape
        torch.Size([4, 2])
    """

    default_loss = "cross_entropy"
    gives_activations = False

    def __init__(self, *, pooling: str = "mean", word_dropout: float = 0.2, **options: Any) -> None:
        super().__init__(pooling=check_choice("pooling", pooling, POOLINGS), word_dropout=word_dropout, **options)
        if pooling == "first" and self.encoder is None:
            raise ValueError("pooling='first' reads the special token of an encoder; give encoder=, or another pooling")
        self.pooling = pooling
        size = self.embedding_size if pooling == "first" else self.word_size
        self.attention = nn.Linear(size, 1) if pooling == "attention" else None
        self.classifier = nn.Linear(size, self.num_classes)

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        if self.pooling == "first":
            return ModelOutput(self.classifier(self.dropout(self.vectors(tokens)[1])))
        words, lengths = self.embed(tokens, classes)
        mask = window_mask(lengths, words.shape[1], 1)
        scores = words.new_zeros(mask.shape) if self.attention is None else self.attention(words).squeeze(-1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).unsqueeze(-1)
        return ModelOutput(self.classifier((weights * words).sum(1)))


def largest(features: Tensor, lengths: Tensor, window: int = 1) -> Tensor:
    """The largest value of each feature over the windows of `window` words that lie within the text.

    Shapes:
        features: (B, C, positions); lengths: (B,) -> (B, C)
    """
    mask = window_mask(lengths, features.shape[-1], window).unsqueeze(1)
    return features.masked_fill(~mask, -torch.inf).amax(-1)
