"""What all classifiers of texts have in common: tokens in, word vectors, padding."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_count, check_positive
from torchcaps.encoding import PAD, TextEncoding
from torchcaps.models.base import Model, ModelOutput

# Standard deviation of the entries of words that have no vector; that of GloVe's are near it.
EMBEDDING_STD = 0.3


class TextModel(Model):
    """A classifier of texts.

    Args:
        num_tokens: rows of the embedding: padding, unknown, words.
        embedding_size: entries of a word's vector.
        word_dropout: share of the entries of word vectors that are dropped in training.
        embedding_rate: learning rate of the word vectors, relative to that of the others; small where they come from a
            larger corpus, which they would forget.
        num_classes, multi_label, **options: see Model.

    Shapes:
        tokens: (B, T) int64; 0 is padding, at the end
    """

    kind = "text"
    preprocessing_class = TextEncoding
    least_length: int = 1

    def __init__(
        self,
        *,
        num_tokens: int,
        num_classes: int,
        multi_label: bool = False,
        embedding_size: int = 100,
        word_dropout: float = 0.5,
        embedding_rate: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            multi_label=multi_label,
            num_tokens=num_tokens,
            embedding_size=embedding_size,
            word_dropout=word_dropout,
            embedding_rate=embedding_rate,
            **options,
        )
        self.preprocessing = TextEncoding(tokeniser="words", vocabulary=())
        self.embedding = nn.Embedding(
            check_count("num_tokens", num_tokens, least=2), check_count("embedding_size", embedding_size), PAD
        )
        self.dropout = nn.Dropout(word_dropout)
        self.learning_rates = {"embedding.weight": check_positive("embedding_rate", embedding_rate)}
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        self.set_vectors(torch.tensor([PAD]), torch.zeros(1, embedding_size))

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        """Classify texts (B, T); `classes` is for models that reconstruct, which no text model does."""
        raise NotImplementedError

    @torch.no_grad()
    def set_vectors(self, numbers: Tensor, vectors: Tensor) -> None:
        """Give the tokens with these numbers (n,) their vectors (n, embedding_size)."""
        self.embedding.weight[numbers] = vectors.to(self.embedding.weight)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of the words, and the length of each text.

        Texts shorter than `least_length` are extended with padding, which then counts as real.

        Shapes:
            tokens: (B, T) -> (B, max(T, least_length), embedding_size), (B,)
        """
        if tokens.dim() != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 of shape (B, T), got {tokens.dtype} of shape {tuple(tokens.shape)}")
        lengths = (tokens != PAD).sum(1).clamp_min(self.least_length)
        missing = max(0, self.least_length - tokens.shape[1])
        return self.dropout(self.embedding(nn.functional.pad(tokens, (0, missing), value=PAD))), lengths

    def describe(self) -> tuple[str, str]:
        return f"texts of {self.options['num_tokens']:,} words", 'predictor.predict(["a text", "another"])'
