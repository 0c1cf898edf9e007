"""Two texts as sets of capsules: how alike they are, and which of their parts match."""

from torchcaps.models import Model, TextModel
from torchcaps.service.results import Matched, MatchedParts, TextPart
from torchcaps.text import CapsuleSentenceEncoder

MOST_TOLD = 12  # matches


def match_texts(name: str, model: Model, text: str, other: str) -> Matched:
    """What the encoder of a model says of two texts; its classes are not asked."""
    assert isinstance(model, TextModel)
    encoder = CapsuleSentenceEncoder(model)
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
