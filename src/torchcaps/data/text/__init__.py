"""Texts with labels: readers, the embedded sets, word vectors, length buckets.

Importing this room does not import torch.
"""

from torchcaps.data.text.buckets import bucket
from torchcaps.data.text.load import is_text, read_texts
from torchcaps.data.text.options import TextOptions, vector_table
from torchcaps.data.text.sets import TextSet
from torchcaps.data.text.sources import SOURCES, TextSource, load_texts
from torchcaps.data.text.tables import Columns
from torchcaps.data.text.vectors import Vectors, read_vectors

__all__ = [
    "SOURCES",
    "Columns",
    "TextOptions",
    "TextSet",
    "TextSource",
    "Vectors",
    "bucket",
    "is_text",
    "load_texts",
    "read_texts",
    "read_vectors",
    "vector_table",
]
