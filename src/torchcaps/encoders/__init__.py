"""Pretrained encoders of texts (transformers): where they lie, their vectors, and a store that computes these once.

Needs the extra: pip install 'torchcaps[encoders]'. Importing this room does not import transformers.
"""

from torchcaps.encoders.files import EncoderFiles, find_encoder, read_encoder
from torchcaps.encoders.store import VectorStore
from torchcaps.encoders.words import EncoderWords

__all__ = ["EncoderFiles", "EncoderWords", "VectorStore", "find_encoder", "read_encoder"]
