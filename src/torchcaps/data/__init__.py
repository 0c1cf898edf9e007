"""Images with labels: readers, the embedded digits, the validation split, augmentations.

Importing this room does not import torch, so that a command line can offer its options quickly.
"""

from torchcaps.data.augment import Augmentation
from torchcaps.data.folders import read_image
from torchcaps.data.load import SOURCES, Source, load_data
from torchcaps.data.sets import DataSet, ImageSet, split_validation

__all__ = [
    "SOURCES",
    "Augmentation",
    "DataSet",
    "ImageSet",
    "Source",
    "load_data",
    "read_image",
    "split_validation",
]
