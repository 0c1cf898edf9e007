"""What all classifiers of texts have in common: tokens in, word vectors, padding."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_count, check_positive
from torchcaps.inputs.source import Source
from torchcaps.inputs.texts import PAD, TextEncoding
from torchcaps.models.base import Model, ModelOutput
from torchcaps.nn import PairEvidence, WordEvidence

# Standard deviation of the entries of words that have no vector; that of GloVe's are near it.
EMBEDDING_STD = 0.3
BESIDE_EVIDENCE_STD = 0.05  # what is counted comes first, what is learned beside it


class TextModel(Model):
    """A classifier of texts.

    Args:
        num_tokens: rows of the embedding: padding, unknown, words.
        embedding_size: entries of a word's vector.
        word_dropout: share of the entries of word vectors that are dropped in training.
        embedding_rate: learning rate of the word vectors, relative to that of the others; small where they come from a
            larger corpus, which they would forget.
        word_evidence: add to each word's vector what it says for each class, counted in the training texts before
            training begins; see `torchcaps.nn.WordEvidence`.
        pair_evidence: the same for pairs of neighbouring words, in this many counters; 0 for none.
        edges: empty words before and after every text, by which n-grams can tell where it begins and ends.
        num_classes, multi_label, **options: see Model.

    Shapes:
        tokens: (B, T) int64; 0 is padding, at the end
    """

    kind = TextEncoding.kind
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
        word_evidence: bool = False,
        pair_evidence: int = 0,
        edges: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            multi_label=multi_label,
            num_tokens=num_tokens,
            embedding_size=embedding_size,
            word_dropout=word_dropout,
            embedding_rate=embedding_rate,
            word_evidence=word_evidence,
            pair_evidence=pair_evidence,
            edges=edges,
            **options,
        )
        self.preprocessing = TextEncoding(tokeniser="words", vocabulary=())
        self.embedding = nn.Embedding(
            check_count("num_tokens", num_tokens, least=2), check_count("embedding_size", embedding_size), PAD
        )
        self.edges = check_count("edges", edges, least=0)
        self.dropout = nn.Dropout(word_dropout)
        self.learning_rates = {"embedding.weight": check_positive("embedding_rate", embedding_rate)}
        self.evidence = WordEvidence(num_tokens, num_classes) if word_evidence else None
        self.evidence_of_pairs = PairEvidence(pair_evidence, num_classes) if pair_evidence else None
        num_counted = sum(counted is not None for counted in (self.evidence, self.evidence_of_pairs))
        self.word_size = embedding_size + num_counted * num_classes
        nn.init.normal_(self.embedding.weight, std=BESIDE_EVIDENCE_STD if num_counted else EMBEDDING_STD)
        self.set_vectors(torch.tensor([PAD]), torch.zeros(1, embedding_size))

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        """Classify texts (B, T); `classes` are the true ones in training, see `embed`."""
        raise NotImplementedError

    @torch.no_grad()
    def set_vectors(self, numbers: Tensor, vectors: Tensor) -> None:
        """Give the tokens with these numbers (n,) their vectors (n, embedding_size)."""
        self.embedding.weight[numbers] = vectors.to(self.embedding.weight)

    def before_training(self, source: Source) -> None:
        """Count the training texts with their classes (n,) or (n, J), for evidence."""
        counted = [evidence for evidence in (self.evidence, self.evidence_of_pairs) if evidence is not None]
        if not counted:
            return
        classes = self.task.classes(torch.as_tensor(source.targets()))
        if source.rows is None or classes is None:
            raise ValueError("evidence is counted in texts with classes; create the model with word_evidence=False")
        for evidence in counted:
            evidence.count(source.rows, classes)

    def embed(self, tokens: Tensor, classes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Vectors of the words, and the length of each text, edges included.

        Texts shorter than `least_length` are extended with padding, which then counts as real. In training `classes`
        are those of the texts, which word evidence leaves out of its counts.

        Shapes:
            tokens: (B, T) -> (B, max(T + 2 edges, least_length), word_size), (B,)
        """
        if tokens.dim() != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be int64 of shape (B, T), got {tokens.dtype} of shape {tuple(tokens.shape)}")
        lengths = ((tokens != PAD).sum(1) + 2 * self.edges).clamp_min(self.least_length)
        missing = max(0, self.least_length - tokens.shape[1] - 2 * self.edges)
        tokens = nn.functional.pad(tokens, (self.edges, self.edges + missing), value=PAD)
        parts = [self.embedding(tokens)]
        for evidence in (self.evidence, self.evidence_of_pairs):
            if evidence is not None:
                parts.append(evidence(tokens, classes).to(parts[0].dtype))
        return self.dropout(torch.cat(parts, -1)), lengths

    def describe(self) -> tuple[str, str]:
        return f"texts of {self.options['num_tokens']:,} words", 'predictor.predict(["a text", "another"])'
