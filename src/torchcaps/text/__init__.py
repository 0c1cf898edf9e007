"""Texts as sets of capsules: how alike two are, and which of their parts match.

Needs the extra: pip install 'torchcaps[encoders]'. Importing this room does not import transformers.
"""

from torchcaps.text.forming import FORMS, form_capsules, starts_of
from torchcaps.text.learning import halves
from torchcaps.text.matching import best_matching, soft_matching
from torchcaps.text.sentences import CapsuleSentenceEncoder
from torchcaps.text.sets import CapsuleSet, Found, Match, Part

__all__ = [
    "FORMS",
    "CapsuleSentenceEncoder",
    "CapsuleSet",
    "Found",
    "Match",
    "Part",
    "best_matching",
    "form_capsules",
    "halves",
    "soft_matching",
    "starts_of",
]
