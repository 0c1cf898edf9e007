"""Folders of images: what is read, and what is said when it cannot be."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import load_data, read_image
from torchcaps.data.labelled import DataNotice


def raw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, image: np.ndarray, **options) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)
    return image


def test_one_folder_per_class(tmp_path):
    images = {
        name: save(tmp_path / name, raw(6, 4, seed=seed))
        for seed, name in enumerate(["dog/b.png", "cat/x.PNG", "dog/a.png"])
    }
    (tmp_path / "dog" / ".hidden.png").write_bytes(b"junk")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README").write_text("not a class")
    with pytest.warns(DataNotice, match=r"1 of 3 files in .*dog do not end in .png, .jpg, .jpeg and are left out"):
        data = load_data(tmp_path)
    assert data.class_names == ("cat", "dog")
    assert data.test is None
    assert data.train.labels.tolist() == [0, 1, 1]
    expected = [images["cat/x.PNG"], images["dog/a.png"], images["dog/b.png"]]
    assert np.array_equal(data.train.images, np.stack(expected))
    assert data.name == tmp_path.name


def test_a_validation_folder_is_for_choices(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "val/b/1.png"):
        save(tmp_path / name, raw(4, 4))
    data = load_data(tmp_path)
    assert (len(data.train), data.test, data.validation.labels.tolist()) == (2, None, [1])


def test_what_lies_beside_the_folders(tmp_path):
    for name in ("parts/train/a/1.png", "parts/train/b/1.png", "classes/training/1.png", "classes/match/1.png"):
        save(tmp_path / name, raw(4, 4))
    (tmp_path / "parts" / "train.zip").write_bytes(b"PK")
    (tmp_path / "parts" / "val.txt").write_text("a/1.png\n")
    (tmp_path / "classes" / "val.txt").write_text("match/1.png\n")
    assert load_data(tmp_path / "parts").class_names == ("a", "b")
    assert load_data(tmp_path / "classes").class_names == ("match", "training")


def test_training_and_test_folders(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "train/b/2.png", "test/b/1.png"):
        save(tmp_path / name, raw(4, 4))
    data = load_data(tmp_path)
    assert data.class_names == ("a", "b")
    assert data.train.labels.tolist() == [0, 1, 1]
    assert data.test.labels.tolist() == [1]
    save(tmp_path / "test" / "c" / "1.png", raw(4, 4))
    with pytest.raises(ValueError, match=r"test/c is a class that training does not have: a, b"):
        load_data(tmp_path)


def test_numbers_are_sorted_as_numbers(tmp_path):
    for name in ("10", "9", "0"):
        save(tmp_path / name / "1.png", raw(4, 4))
    assert load_data(tmp_path).class_names == ("0", "9", "10")
    save(tmp_path / "x" / "1.png", raw(4, 4))
    assert load_data(tmp_path).class_names == ("0", "10", "9", "x")


def test_mixed_sizes_are_stretched_to_the_median_of_training(tmp_path):
    for number, size in enumerate([(10, 30), (12, 20), (40, 22)]):
        save(tmp_path / "train" / "a" / f"{number}.png", np.full(size, 50 * number, np.uint8))
    save(tmp_path / "test" / "a" / "1.png", np.full((99, 98), 7, np.uint8))
    data = load_data(tmp_path)
    assert data.train.images.shape == (3, 12, 22)
    assert data.test.images.shape == (1, 12, 22)
    for number in range(3):
        assert (data.train.images[number] == 50 * number).all()
    assert load_data(tmp_path, image_size=(5, 6)).train.images.shape == (3, 5, 6)


def test_stretching_filters_before_it_samples(tmp_path):
    board = np.indices((32, 32)).sum(0) % 2 * 255  # one value in each place would be 0 or 255
    save(tmp_path / "a" / "1.png", board.astype(np.uint8))
    small = load_data(tmp_path, image_size=(8, 8)).train.images.astype(int)
    assert abs(small - 127.5).max() < 20


def test_one_colour_image_makes_all_of_them_colour(tmp_path):
    grey, colour = save(tmp_path / "a" / "1.png", raw(4, 5)), save(tmp_path / "a" / "2.png", raw(4, 5, 3))
    images = load_data(tmp_path).train.images
    assert images.shape == (2, 4, 5, 3)
    assert np.array_equal(images[0], np.repeat(grey[..., None], 3, axis=2))
    assert np.array_equal(images[1], colour)


def test_kinds_of_pictures(tmp_path):
    transparent = save(tmp_path / "rgba.png", raw(4, 5, 4))
    assert np.array_equal(read_image(tmp_path / "rgba.png"), transparent[..., :3])
    deep = save(tmp_path / "deep.png", np.array([[0, 257 * 100, 65535]], np.uint16))
    assert read_image(tmp_path / "deep.png").tolist() == (deep // 257).tolist() == [[0, 100, 255]]
    Image.fromarray(raw(4, 5, 3)).quantize(4).save(tmp_path / "palette.png", transparency=bytes([0, 128, 255, 9]))
    assert read_image(tmp_path / "palette.png").shape == (4, 5, 3)
    Image.new("1", (5, 4), 1).save(tmp_path / "bits.png")
    assert read_image(tmp_path / "bits.png").tolist() == [[255] * 5] * 4
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8) * 8
    save(tmp_path / "photo.jpeg", smooth, quality=95)
    assert abs(read_image(tmp_path / "photo.jpeg").astype(int) - smooth).max() < 6
    assert read_image(tmp_path / "photo.jpeg", is_grey=False).shape == (16, 16, 3)


def test_a_photo_on_its_side_is_turned(tmp_path):
    image = np.zeros((16, 32), np.uint8)
    image[:, :8] = 255  # the left part is bright
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it upright
    save(tmp_path / "a" / "1.jpg", image, exif=exif, quality=95)
    found = load_data(tmp_path).train.images[0]
    assert found.shape == (32, 16)
    assert found[:7].min() > 200  # left has become top
    assert found[9:].max() < 50


def png_header(width: int, height: int) -> bytes:
    """A PNG file that declares a size and holds no pixels."""
    chunk = b"IHDR" + struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)
    header = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = zlib.compress(b"")
    body = struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))
    return b"\x89PNG\r\n\x1a\n" + header + body


def whole_png(tmp_path) -> bytes:
    save(tmp_path / "whole" / "1.png", raw(20, 20))
    return (tmp_path / "whole" / "1.png").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot identify"),
        (b"plain text", "cannot identify"),
        (png_header(9000, 9000), "declares 9000 x 9000 pixels, more than"),
        (png_header(20, 20), "truncated|broken"),
    ],
)
def test_unreadable_images_are_named(tmp_path, content, message):
    save(tmp_path / "a" / "1.png", raw(20, 20))
    (tmp_path / "a" / "2.png").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a/2.png cannot be read as a PNG or JPEG image: .*({message})"):
        load_data(tmp_path)


def test_truncation_anywhere_is_described(tmp_path):
    whole = whole_png(tmp_path)
    path = tmp_path / "part.png"
    for num_bytes in range(0, len(whole) - 20, 9):  # the last 20 bytes are checksums and an end mark, no pixels
        path.write_bytes(whole[:num_bytes])
        with pytest.raises(ValueError, match="part.png cannot be read"):
            read_image(path)


def test_other_formats_are_not_tried(tmp_path):
    save(tmp_path / "real.gif", raw(4, 4))
    (tmp_path / "real.gif").rename(tmp_path / "false.png")
    with pytest.raises(ValueError, match="false.png cannot be read as a PNG or JPEG image: cannot identify"):
        read_image(tmp_path / "false.png")


def test_empty_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no folders; expected one folder of PNG or JPEG images per class"):
        load_data(tmp_path)
    save(tmp_path / "a" / "1.png", raw(4, 4))
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"b has no images that end in .png, .jpg, .jpeg; it is empty"):
        load_data(tmp_path)
    (tmp_path / "b" / "1.webp").write_bytes(b"RIFF")
    with pytest.raises(ValueError, match=r"b has no images that end in .*; it holds 1.webp"):
        load_data(tmp_path)


def test_images_without_a_class_are_not_a_set(tmp_path):
    save(tmp_path / "1.png", raw(4, 4))
    with pytest.raises(ValueError, match="holds no folders"):
        load_data(tmp_path)


def test_more_than_the_memory_is_refused(tmp_path):
    save(tmp_path / "a" / "1.png", raw(4, 4))
    with pytest.raises(ValueError, match="GB of images, more than .*fewer or smaller images"):
        load_data(tmp_path, image_size=(10**7, 10**7))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.png does not exist"):
        read_image(tmp_path / "none.png")
