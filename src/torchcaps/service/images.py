"""Pictures as they travel: PNG files in, checked before they are decoded, and PNG files out."""

import base64
import binascii
import io
import struct

import numpy as np
from PIL import Image

from torchcaps.data.folders import upright
from torchcaps.inputs.images import Preprocessing
from torchcaps.service.refusals import Refusal

MAX_PNG_BYTES = 2**19
MAX_SIDE = 1024  # pixels
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def from_base64(text: str) -> bytes:
    """The bytes that base64 stands for."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal("image must be a PNG file in base64, without the prefix 'data:'") from error


def from_png(data: bytes) -> np.ndarray:
    """A PNG file as uint8 (h, w) if it is grey, else (h, w, 3), as images of folders are read.

    Size and dimensions are checked before anything is unpacked.
    """
    if len(data) > MAX_PNG_BYTES:
        raise Refusal(f"the PNG file must have at most {MAX_PNG_BYTES} bytes, got {len(data)}")
    if data[:8] != SIGNATURE or data[12:16] != b"IHDR" or len(data) < 33:
        raise Refusal("image must be a PNG file; its first bytes are those of something else")
    width, height = struct.unpack(">II", data[16:24])
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise Refusal(f"an image must have between 1 and {MAX_SIDE} pixels each way, got {width} x {height}")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
            picture.load()
            return np.array(upright(picture))
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        raise Refusal("the PNG file is damaged and cannot be read") from error


def to_png(image: np.ndarray) -> bytes:
    """uint8 (h, w), (h, w, 1), (h, w, 3) or, as two pictures side by side, (h, w, 2) as a PNG file."""
    if image.ndim == 3 and image.shape[2] != 3:
        image = np.concatenate([*np.moveaxis(image, 2, 0)], axis=1)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def to_base64(image: np.ndarray) -> str:
    """`to_png` in base64."""
    return base64.b64encode(to_png(image)).decode()


def raw_picture(image: np.ndarray | bytes, preprocessing: Preprocessing) -> np.ndarray:
    """A picture with the channels and the size that a model's images have before they are scaled and cropped.

    Args:
        image: pixels, or a PNG file, which for two cameras holds their pictures side by side.
        preprocessing: of the model.

    Shapes:
        image: uint8 (h, w) or (h, w, c) -> uint8 (height, width, channels)
    """
    channels = preprocessing.channels
    if isinstance(image, bytes):
        image = from_png(image)
        if channels == 2:
            image = _cameras(image)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
        raise Refusal(f"an image must be uint8 of shape (h, w) or (h, w, c), got {image.dtype} {image.shape}")
    came = image.shape[2] if image.ndim == 3 else 1
    if came != channels and {came, channels} != {1, 3}:
        raise Refusal(f"the model takes images of {channels} channels, got {came}")
    resize = Preprocessing(image_size=preprocessing.image_size, channels=channels)
    fractions_CHW = resize(image[None])[0]
    return (255 * fractions_CHW).round().byte().permute(1, 2, 0).contiguous().numpy()


def _cameras(image: np.ndarray) -> np.ndarray:
    """Two pictures side by side as (h, w / 2, 2)."""
    if image.ndim == 3:
        image = np.asarray(Image.fromarray(image).convert("L"))
    if image.shape[1] % 2:
        raise Refusal(
            f"the model has two cameras: their pictures must stand side by side in one image of even width, "
            f"got a width of {image.shape[1]}"
        )
    return np.stack(np.split(image, 2, axis=1), axis=2)
