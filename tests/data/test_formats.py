"""Formats of images: who reads a path, and one of one's own."""

import numpy as np
import pytest

from torchcaps.data import Format, ImageSet, formats, load_data, register_format
from torchcaps.data.formats import find_format
from torchcaps.data.load import is_image_folder


@pytest.fixture
def own_format(monkeypatch):
    """Files of one byte for each pixel and a label before them, four by four."""
    monkeypatch.setattr(formats, "_formats", list(formats._formats))

    def read(path):
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 17)
        images, labels = rows[:, 1:].reshape(-1, 4, 4), rows[:, 0].astype(np.int64)
        return ImageSet(images=images, labels=labels, class_names=("no", "yes")), None

    register_format(Format(name="a .raw file", is_here=lambda path: path.suffix == ".raw", read=read))


def test_a_format_of_ones_own_is_read_like_any_other(own_format, tmp_path):
    rows = np.arange(51, dtype=np.uint8).reshape(3, 17)
    rows[:, 0] = [0, 1, 1]
    (tmp_path / "set.raw").write_bytes(rows.tobytes())
    data = load_data(tmp_path / "set.raw")
    assert np.array_equal(data.train.images[1], rows[1, 1:].reshape(4, 4))
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.class_names == ("no", "yes")
    assert data.test is None
    with pytest.raises(ValueError, match="image_size is for folders of images and smallNORB"):
        load_data(tmp_path / "set.raw", image_size=(2, 2))


def test_a_file_of_no_format_is_refused(tmp_path):
    (tmp_path / "set.raw").write_bytes(bytes(17))
    with pytest.raises(ValueError, match=r"set.raw must be a folder, an .npz file or an archive of CIFAR-10"):
        load_data(tmp_path / "set.raw")


def test_any_other_folder_is_one_of_pictures(tmp_path):
    assert find_format(tmp_path).takes_any_size
    assert is_image_folder(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"")
    assert find_format(tmp_path).name == "idx files"
    assert not is_image_folder(tmp_path)
