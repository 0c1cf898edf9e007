"""Names, paths, and the embedded digits."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchcaps.data import SOURCES, load_data
from torchcaps.data.load import EMBEDDED

HOME = Path(os.environ.get("TORCHCAPS_DATA") or "/nowhere")
needs_mnist = pytest.mark.skipif(
    not (HOME / "mnist").is_dir(), reason="needs the idx files of MNIST in $TORCHCAPS_DATA/mnist"
)
TOOL = Path(__file__).parents[2] / "tools" / "embed_digits.py"


def test_the_embedded_digits():
    data = load_data()
    assert data.name == "digits"
    assert data.train.images.shape == (5000, 28, 28)
    assert data.test.images.shape == (1000, 28, 28)
    assert np.bincount(data.train.labels).tolist() == [500] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert data.class_names == tuple("0123456789")
    assert "CC BY-SA 3.0" in data.terms
    assert "MNIST" in data.origin
    assert data.train.images.flags.writeable


def test_no_test_digit_is_a_training_digit():
    data = load_data("digits")
    train, test = (
        {hashlib.sha256(image.tobytes()).digest() for image in part.images} for part in (data.train, data.test)
    )
    assert len(train) == 5000
    assert len(test) == 1000
    assert not train & test


def test_digits_look_like_their_labels():
    data = load_data("digits")
    means = np.stack([data.train.images[data.train.labels == label].mean(0).ravel() for label in range(10)])
    distances = ((data.test.images.reshape(1000, 1, -1) - means) ** 2).sum(2)
    assert (distances.argmin(1) == data.test.labels).mean() > 0.75  # nearest mean: 0.831


def test_digits_come_with_origin_and_licence_and_are_small():
    assert (EMBEDDED / "digits.npz").stat().st_size < 1_500_000
    assert "train-images-idx3-ubyte" in (EMBEDDED / "ORIGIN.md").read_text()
    assert "Attribution-ShareAlike 3.0 Unported" in (EMBEDDED / "LICENSE").read_text()


@needs_mnist
def test_mnist_by_name():
    data = load_data("mnist")
    assert data.train.images.shape == (60000, 28, 28)
    assert data.test.images.shape == (10000, 28, 28)
    # The published counts of the digits, and the first labels everyone knows.
    assert np.bincount(data.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]


@needs_mnist
def test_the_tool_makes_the_embedded_digits_again(tmp_path):
    made = tmp_path / "digits.npz"
    subprocess.run([sys.executable, TOOL, made], check=True)
    ours, again = load_data("digits"), load_data(made)
    for part in ("train", "test"):
        assert np.array_equal(getattr(ours, part).images, getattr(again, part).images)
        assert np.array_equal(getattr(ours, part).labels, getattr(again, part).labels)


def test_unknown_names_get_a_suggestion_and_a_place():
    with pytest.raises(FileNotFoundError, match=r"'minst'.*did you mean 'mnist'.*into .*/NAME"):
        load_data("minst")
    with pytest.raises(FileNotFoundError, match="digits, mnist, fashion-mnist") as raised:
        load_data("/no/such/place")
    assert "did you mean" not in str(raised.value)


def test_named_sets_say_where_their_files_belong(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError,
        match=r"data fetch fashion-mnist`, or put its files into data/fashion-mnist .*, or set TORCHCAPS_DATA to",
    ):
        load_data("fashion-mnist")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"put its files into .*fashion-mnist \(60,000 training .*\)$"):
        load_data("fashion-mnist")
    monkeypatch.delenv("TORCHCAPS_DATA")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "fashion-mnist").mkdir(parents=True)  # where `torchcaps data fetch` puts it
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte"):
        load_data("fashion-mnist")


def test_sizes_are_for_folders_of_images(tmp_path):
    with pytest.raises(ValueError, match="image_size is for folders of images and smallNORB; digits has"):
        load_data("digits", image_size=(14, 14))
    with pytest.raises(ValueError, match="image_size is for folders of images and smallNORB; .*digits.npz has"):
        load_data(EMBEDDED / "digits.npz", image_size=(14, 14))
    with pytest.raises(ValueError, match="height of image_size must be at least 1"):
        load_data(tmp_path, image_size=(0, 4))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "table.doc"
    path.write_text("1,2")
    with pytest.raises(ValueError, match=r"table.doc must be a folder, an .npz file or an archive of CIFAR-10"):
        load_data(path)


def test_every_source_says_what_it_is():
    for source in SOURCES.values():
        assert source.description
        assert source.origin
        assert source.terms
