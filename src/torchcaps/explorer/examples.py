"""Examples of test data for a model, from what the package holds or the user has."""

import numpy as np

from torchcaps.data import ImageSet, TextSet
from torchcaps.data.load import EMBEDDED
from torchcaps.data.showing import even_choice
from torchcaps.data.text import SOURCES as TEXT_SOURCES
from torchcaps.data.toys.shapes import CATEGORIES
from torchcaps.explorer.results import Example
from torchcaps.inputs.histories import HistoryEncoding
from torchcaps.inputs.images import Preprocessing
from torchcaps.inputs.texts import TextEncoding, is_chinese
from torchcaps.models import Model
from torchcaps.service.held_out import held_out, test_part
from torchcaps.service.images import raw_picture

NUM_EXAMPLES = 20
LENGTHS = range(20, 160)  # characters of texts that are shown


def find_examples(model: Model) -> list[Example]:
    """About 20 examples that the model was not trained on, each class with its share; none if there are no such."""
    return KINDS[model.preprocessing.kind](model)


def _embedded_texts(model: Model) -> TextSet | None:
    """Embedded texts in the model's language with its classes."""
    wanted = model.preprocessing.language == "zh"
    for name, source in TEXT_SOURCES.items():
        part = test_part(name, model) if source.place is not None else None
        if part is not None and is_chinese(part.texts[:100]) == wanted:
            return part
    return None


def _toys() -> ImageSet:
    """Views of toys of the test part."""
    with np.load(EMBEDDED / "toys.npz", allow_pickle=False) as file:
        return ImageSet(images=file["images"], labels=file["labels"], class_names=CATEGORIES)


def _texts(model: Model) -> list[Example]:
    """Short ones, as many of each class as of any other."""
    part = held_out(model) or _embedded_texts(model)
    if part is None:
        return []
    is_short = np.array([len(text) in LENGTHS for text in part.texts])
    share = max(NUM_EXAMPLES // len(part.class_names), 1)
    examples = []
    for label, name in enumerate(part.class_names):
        is_member = part.labels[:, label] if part.is_multi_label else part.labels == label
        chosen = np.flatnonzero(is_short & is_member)[:share]
        examples += [Example(label=name, text=part.texts[number]) for number in chosen]
    return examples


def _images(model: Model) -> list[Example]:
    """As many of each class as of any other."""
    part = _toys() if set(model.labels) == set(CATEGORIES) else held_out(model)
    if part is None:
        return []
    wanted = model.preprocessing.channels
    examples = []
    for number in even_choice(part, NUM_EXAMPLES):
        image = np.asarray(part.images[number])
        if image.ndim == 3 and image.shape[2] == 2:  # of two cameras a model may have one
            image = image[..., :wanted]
        labels = np.flatnonzero(part.labels[number]) if part.is_multi_label else [part.labels[number]]
        name = " + ".join(part.class_names[label] for label in labels)
        examples.append(Example(label=name, image=raw_picture(image, model.preprocessing)))
    return examples


KINDS = {Preprocessing.kind: _images, TextEncoding.kind: _texts, HistoryEncoding.kind: lambda model: []}
