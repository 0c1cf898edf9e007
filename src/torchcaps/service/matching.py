"""Two texts as sets of capsules: how alike they are, and which of their parts match."""

from torchcaps.models import Model, TextModel
from torchcaps.service.results import Matched, MatchedParts, TextPart
from torchcaps.text import CapsuleSentenceEncoder

MOST_TOLD = 12  # matches


def sentence_encoder(model: Model) -> CapsuleSentenceEncoder:
    """Texts as sets of capsules, on the encoder of a model."""
    assert isinstance(model, TextModel)
    return CapsuleSentenceEncoder(model)


def match_texts(name: str, encoder: CapsuleSentenceEncoder, text: str, other: str) -> Matched:
    """How alike two texts are; the classes of the model are not asked."""
    first, second = encoder.encode([text, other])
    found = encoder.match(first, second)[:MOST_TOLD]
    return Matched(
        model=name,
        similarity=round(encoder.compare(first, second), 6),
        first=[TextPart(words=list(part.words), share=round(part.share, 6)) for part in encoder.parts(first)],
        second=[TextPart(words=list(part.words), share=round(part.share, 6)) for part in encoder.parts(second)],
        matches=[
            MatchedParts(first=i, second=j, share=round(share, 6), similarity=round(similarity, 6))
            for i, j, share, similarity in found
        ],
    )
