"""PNG files in and out, and what is refused before it is unpacked."""

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import read_image
from torchcaps.inputs.images import Preprocessing
from torchcaps.service.images import MAX_PNG_BYTES, from_base64, from_png, raw_picture, to_png
from torchcaps.service.refusals import Refusal

PIXELS = np.arange(48, dtype=np.uint8).reshape(6, 8)
COLOURS = np.arange(144, dtype=np.uint8).reshape(6, 8, 3)


def as_png(picture: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def declared(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG file that says it has this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("pixels", [PIXELS, COLOURS], ids=["grey", "colour"])
def test_pictures_come_back_as_they_went(pixels):
    assert np.array_equal(from_png(to_png(pixels)), pixels)


def test_two_cameras_stand_side_by_side():
    both = np.stack([PIXELS, PIXELS + 100], axis=2)
    wide = from_png(to_png(both))
    assert np.array_equal(wide, np.concatenate([PIXELS, PIXELS + 100], axis=1))
    preprocessing = Preprocessing(image_size=(6, 8), channels=2)
    assert np.array_equal(raw_picture(to_png(both), preprocessing), both)
    colourful = np.repeat(wide[..., None], 3, axis=2)
    assert np.array_equal(raw_picture(to_png(colourful), preprocessing), both)
    with pytest.raises(Refusal, match="side by side in one image of even width, got a width of 7"):
        raw_picture(to_png(PIXELS[:, :7]), preprocessing)


def test_every_kind_of_png(tmp_path):
    picture = Image.fromarray(PIXELS)
    assert np.array_equal(from_png(as_png(picture.convert("P"))), np.repeat(PIXELS[..., None], 3, axis=2))
    assert set(from_png(as_png(picture.convert("1"))).ravel().tolist()) <= {0, 255}
    deep = Image.fromarray(PIXELS.astype(np.uint16) * 257)
    assert np.array_equal(from_png(as_png(deep)), PIXELS)
    half = Image.merge("LA", [Image.new("L", (8, 6), 200), Image.new("L", (8, 6), 0)])
    clear = Image.fromarray(np.full((6, 8, 4), 255, np.uint8) * np.array([1, 1, 1, 0], np.uint8))
    for data in (as_png(half), as_png(clear), as_png(Image.new("L", (8, 6), 7), transparency=7), as_png(deep)):
        (tmp_path / "a.png").write_bytes(data)
        assert np.array_equal(from_png(data), read_image(tmp_path / "a.png"))  # as in training


def test_a_picture_takes_the_size_and_channels_of_the_model():
    preprocessing = Preprocessing(image_size=(3, 4), channels=1, scaling="standardise", crop=(2, 2))
    raw = raw_picture(PIXELS, preprocessing)
    assert raw.shape == (3, 4, 1)
    blocks = PIXELS.reshape(3, 2, 4, 2).mean((1, 3))
    assert abs(raw[..., 0] - blocks).max() <= 0.5
    assert raw_picture(COLOURS, Preprocessing(image_size=(6, 8), channels=1)).shape == (6, 8, 1)
    assert raw_picture(PIXELS, Preprocessing(image_size=(6, 8), channels=3)).shape == (6, 8, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "must be a PNG file"),
        (b"GIF89a" + bytes(100), "must be a PNG file"),
        (as_png(Image.fromarray(PIXELS))[:20], "must be a PNG file"),
        (as_png(Image.fromarray(PIXELS))[:-30], "is damaged"),
        (declared(50_000, 50_000), "between 1 and 1024 pixels each way, got 50000 x 50000"),
        (declared(0, 5), "between 1 and 1024 pixels"),
        (declared(2**31, 1), "between 1 and 1024 pixels"),
        (declared(1024, 1024), "is damaged"),  # says much, holds nothing
        (b"\x89PNG\r\n\x1a\n" + bytes(MAX_PNG_BYTES), "at most 524288 bytes"),
    ],
    ids=["empty", "gif", "cut in the header", "cut", "huge", "no width", "wide", "hollow", "many bytes"],
)
def test_what_is_no_picture_is_refused(data, reason):
    with pytest.raises(Refusal, match=reason):
        from_png(data)


def test_a_bomb_in_a_comment_is_not_unpacked():
    bomb = zlib.compress(bytes(2**24))  # 16 MB of zeros
    plain = as_png(Image.fromarray(PIXELS))
    data = plain[:33] + chunk(b"zTXt", b"Comment\0\0" + bomb) + plain[33:]
    assert len(data) < MAX_PNG_BYTES
    with pytest.raises(Refusal, match="is damaged"):
        from_png(data)


@pytest.mark.parametrize("text", ["data:image/png;base64,AAAA", "A", "====", "not base64!", "é"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(Refusal, match="must be a PNG file in base64"):
        from_base64(text)


def test_base64_is_read():
    assert from_base64(base64.b64encode(b"abc").decode()) == b"abc"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (PIXELS.astype(np.float32), "must be uint8"),
        (PIXELS[0], "must be uint8 of shape"),
        (PIXELS[:0], "must be uint8 of shape"),
        (np.zeros((4, 4, 5), np.uint8), "takes images of 1 channels, got 5"),
    ],
)
def test_what_is_no_image_is_refused(image, reason):
    with pytest.raises(Refusal, match=reason):
        raw_picture(image, Preprocessing())
