"""What batches are read from: sets that read by themselves, and any other dataset."""

import numpy as np
import pytest
import torch

from torchcaps.data import ImageSet, TextSet
from torchcaps.inputs import Preprocessing, Source, TextEncoding

LABELS = np.array([0, 1, 1, 0])


def test_a_set_reads_by_itself_and_others_are_stacked():
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 6), dtype=np.uint8)
    image_set = ImageSet(images=images, labels=LABELS, class_names=("a", "b"))
    pairs = [(image, label) for image, label in zip(images, LABELS, strict=True)]
    for examples in (image_set, pairs):
        source = Preprocessing(image_size=(6, 6)).open(examples)
        found, targets = source.read([2, 0])
        assert np.array_equal(found, images[[2, 0]])
        assert targets.tolist() == [1, 0]
        assert np.array_equal(source.targets(), LABELS)
        assert (len(source), source.rows, source.lengths) == (4, None, None)


def test_a_dataset_is_asked_for_its_examples_whatever_else_it_has():
    class Scaled(torch.utils.data.Dataset):
        labels = np.array([7, 7])  # of before its own transformation

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.zeros((2, 2), np.uint8), index

    assert Source(Scaled()).targets().tolist() == [0, 1]


def test_texts_are_encoded_once():
    text_set = TextSet(texts=["a b c", "a", "c a", "b"], labels=LABELS, class_names=("a", "b"))
    encoding = TextEncoding.of(text_set.texts)
    source = encoding.open(text_set)
    assert source.lengths.tolist() == [3, 1, 2, 1]
    rows, targets = source.read([2, 3])
    assert torch.equal(encoding.stack(rows), encoding(["c a", "b"]))
    assert torch.equal(encoding.augmented(rows, lambda images: 0 * images, is_cropping=True), encoding.stack(rows))
    assert targets.tolist() == [1, 0]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_parts_are_all_of_it(size):
    texts = ["a b c", "a", "c a", "b"]
    encoding = TextEncoding.of(texts)
    found = {int(place): text for places, part in encoding.parts(texts, size) for place, text in zip(places, part)}
    assert [found[place] for place in range(4)] == texts
    images = np.arange(4 * 4, dtype=np.uint8).reshape(4, 2, 2)
    again = np.zeros_like(images)
    for where, part in Preprocessing(image_size=(2, 2)).parts(images, size):
        again[where] = part
    assert np.array_equal(again, images)
