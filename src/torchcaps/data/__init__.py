"""Images with labels: readers, the embedded digits, validation and protocol splits, augmentations.

Importing this room does not import torch, so that a command line can offer its options quickly.
"""

from torchcaps.data.augment import Augmentation
from torchcaps.data.folders import read_image
from torchcaps.data.formats import Format, register_format
from torchcaps.data.labelled import LabelledSet
from torchcaps.data.load import SOURCES, Source, load_data
from torchcaps.data.sampling import choose_some, split_validation
from torchcaps.data.sets import DataSet, ImageSet
from torchcaps.data.splits import (
    Viewpoints,
    novel_azimuth,
    novel_elevation,
    unseen_instances,
    validation_by_instance,
)
from torchcaps.data.text import Columns, TextSet

__all__ = [
    "SOURCES",
    "Augmentation",
    "Columns",
    "DataSet",
    "Format",
    "ImageSet",
    "LabelledSet",
    "Source",
    "TextSet",
    "Viewpoints",
    "choose_some",
    "load_data",
    "novel_azimuth",
    "novel_elevation",
    "read_image",
    "register_format",
    "split_validation",
    "unseen_instances",
    "validation_by_instance",
]
