"""What all classifiers of texts have in common: tokens in, word vectors, padding."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.checks import check_count, check_positive
from torchcaps.encoders import EncoderFiles, EncoderWords, read_encoder
from torchcaps.inputs.source import Source
from torchcaps.inputs.subwords import SubwordEncoding
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
        encoder: a pretrained encoder whose vectors take the place of the embedding: a folder, an installed package that
            carries one, or OWNER/NAME on the hub; see `torchcaps.encoders.find_encoder`. `num_tokens` and
            `embedding_size` are then its own.
        encoder_files: what was read of it, as a saved folder knows it; None reads it now.
        fine_tune: train the encoder's weights, too, at `embedding_rate`; frozen, they stay in their own folder.
        save_memory: of an encoder that is trained: compute its layers again for gradients instead of keeping them.
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
        num_tokens: int | None = None,
        num_classes: int,
        multi_label: bool = False,
        embedding_size: int = 100,
        word_dropout: float = 0.5,
        embedding_rate: float = 1.0,
        word_evidence: bool = False,
        pair_evidence: int = 0,
        edges: int = 0,
        encoder: str | None = None,
        encoder_files: dict[str, Any] | None = None,
        fine_tune: bool = False,
        save_memory: bool = False,
        **options: Any,
    ) -> None:
        is_new, preprocessing = encoder is not None and encoder_files is None, None
        if encoder is None and num_tokens is None:
            raise TypeError("a text model needs num_tokens, the rows of its embedding, or an encoder")
        if encoder is None and (fine_tune or save_memory):
            raise ValueError("fine_tune and save_memory are about an encoder; give encoder=, or leave them out")
        if encoder is not None:
            files, preprocessing = (EncoderFiles.from_dict(encoder_files), None) if encoder_files else read(encoder)
            encoder_files, num_tokens, embedding_size = files.to_dict(), files.num_tokens, files.size
            own = {"encoder": encoder, "encoder_files": encoder_files, "fine_tune": fine_tune}
            options |= own | ({"save_memory": True} if save_memory else {})
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
        self.preprocessing = preprocessing or TextEncoding(tokeniser="words", vocabulary=())
        num_tokens = check_count("num_tokens", num_tokens, least=2)
        rate = check_positive("embedding_rate", embedding_rate)
        self.edges = check_count("edges", edges, least=0)
        self.dropout = nn.Dropout(word_dropout)
        self.embedding = self.encoder = None
        if encoder is None:
            self.embedding = nn.Embedding(num_tokens, check_count("embedding_size", embedding_size), PAD)
            self.learning_rates = {"embedding.weight": rate}
        else:
            self.encoder = EncoderWords(encoder, files, fine_tune=fine_tune, save_memory=save_memory)
            self.learning_rates = {f"encoder.{name}": rate for name, _ in self.encoder.named_parameters()}
            if is_new:
                self.encoder.load_pretrained()
        self.evidence = WordEvidence(num_tokens, num_classes) if word_evidence else None
        self.evidence_of_pairs = PairEvidence(pair_evidence, num_classes) if pair_evidence else None
        num_counted = sum(counted is not None for counted in (self.evidence, self.evidence_of_pairs))
        self.embedding_size = embedding_size
        self.word_size = embedding_size + num_counted * num_classes
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=BESIDE_EVIDENCE_STD if num_counted else EMBEDDING_STD)
            self.set_vectors(torch.tensor([PAD]), torch.zeros(1, embedding_size))

    def forward(self, tokens: Tensor, classes: Tensor | None = None) -> ModelOutput:
        """Classify texts (B, T); `classes` are the true ones in training, see `embed`."""
        raise NotImplementedError

    @torch.no_grad()
    def set_vectors(self, numbers: Tensor, vectors: Tensor) -> None:
        """Give the tokens with these numbers (n,) their vectors (n, embedding_size)."""
        if self.embedding is None:
            raise ValueError("the words of this model have the vectors of its encoder; others cannot be set")
        self.embedding.weight[numbers] = vectors.to(self.embedding.weight)

    def before_training(self, source: Source) -> None:
        """Count the training texts with their classes (n,) or (n, J), for evidence; let a frozen encoder read them."""
        if self.encoder is not None and source.rows is not None:
            self.encoder.keep(source.rows)
            self.encoder.settle(source.rows)
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
        around = (self.edges, self.edges + missing)
        vectors = self.vectors(tokens)[0] if self.embedding is None else self.embedding(tokens)
        parts = [nn.functional.pad(vectors, (0, 0, *around))]  # the vector of padding is 0
        tokens = nn.functional.pad(tokens, around, value=PAD)
        for evidence in (self.evidence, self.evidence_of_pairs):
            if evidence is not None:
                parts.append(evidence(tokens, classes).to(parts[0].dtype))
        return self.dropout(torch.cat(parts, -1)), lengths

    def vectors(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder says of every token, (B, T, E), and of the first special one, (B, E)."""
        if self.encoder is None:
            raise ValueError(f"{self.name} has no encoder; create it with encoder=")
        return self.encoder(tokens)

    def read_preprocessing(self, saved: Mapping[str, Any]) -> TextEncoding | SubwordEncoding:
        """How texts are read, from what was saved of it."""
        return TextEncoding.from_dict(saved) if self.encoder is None else SubwordEncoding.from_dict(saved)

    def make_whole(self) -> None:
        """Take a frozen encoder in, for a file that runs without its folder."""
        if self.encoder is not None:
            self.encoder.include()

    def describe(self) -> tuple[str, str]:
        if self.encoder is not None:
            how = "fine-tuned" if self.encoder.fine_tune else "frozen, whose weights are not in this folder"
            return f"texts, on the encoder {self.encoder.name} ({how})", 'predictor.predict(["a text", "another"])'
        return f"texts of {self.options['num_tokens']:,} words", 'predictor.predict(["a text", "another"])'


def read(encoder: str) -> tuple[EncoderFiles, SubwordEncoding]:
    """What there is to know of an encoder, and how texts become its sub-words."""
    files, tokenizer = read_encoder(encoder)
    return files, SubwordEncoding(tokenizer=tokenizer)
