"""Pictures as they come in the world: turned, moved, noisy, blurred, flat; three strengths of each, for tests."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchcaps.checks import check_choice
from torchcaps.data.augment import warp

# By kind: the strengths from weak to strong, in the unit of the kind.
STRENGTHS: dict[str, tuple[float, float, float]] = {
    "rotated": (15.0, 30.0, 45.0),  # degrees, to either side
    "shifted": (0.0625, 0.125, 0.1875),  # of a side: 2, 4 and 6 of 32 pixels, in a diagonal direction
    "noise": (0.04, 0.08, 0.16),  # deviation of normal noise, of pixels in [0, 1]
    "blur": (0.5, 1.0, 2.0),  # deviation of a Gaussian, in pixels of 32
    "contrast": (0.75, 0.5, 0.25),  # what is left of the distance from the mean of the picture
}
USUAL_SIDE = 32
CHUNK = 1000


def corrupted(images: np.ndarray, kind: str, strength: float, *, seed: int = 0) -> np.ndarray:
    """Pictures with one corruption, the same ones for the same seed.

    What comes from outside a picture is its own edge, so that no black frame tells that it was moved.

    Args:
        images: uint8 (n, h, w) or (n, h, w, c).
        kind: one of STRENGTHS.
        strength: in the unit of the kind; see there.
        seed: of directions and noise.

    Example:
        >>> pictures = np.full((2, 8, 8, 3), 100, np.uint8)
        >>> bool((corrupted(pictures, "contrast", 0.5) == pictures).all())
        True
    """
    change = CHANGES[check_choice("kind", kind, CHANGES)]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(f"images must be uint8 (n, h, w) or (n, h, w, c), got {images.dtype} of {images.shape}")
    parts = []
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK]
        maps = torch.from_numpy(part[..., None] if part.ndim == 3 else part).permute(0, 3, 1, 2).float() / 255
        generator = torch.Generator().manual_seed(1_000_003 * seed + start)
        changed = (change(maps, strength, generator).clamp(0, 1) * 255).round().to(torch.uint8)
        parts.append(changed.permute(0, 2, 3, 1).numpy().reshape(part.shape))
    return np.concatenate(parts) if parts else images.copy()


def _signs(num: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, (num,), generator=generator) - 1


def _moved(images: Tensor, angle: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Turned about the centre and moved; the edge goes on outside."""
    border = max(images.shape[2:])
    padded = functional.pad(images, (border,) * 4, mode="replicate")
    cosine, sine = angle.cos(), angle.sin()
    inverse = torch.stack([cosine, sine, -sine, cosine], 1).unflatten(1, (2, 2))
    moved = warp(padded, inverse, down, right)
    return moved[:, :, border:-border, border:-border]


def _rotated(images: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    angle = _signs(len(images), generator) * (degrees * torch.pi / 180)
    return _moved(images, angle, torch.zeros_like(angle), torch.zeros_like(angle))


def _shifted(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    steps = [round(share * size) for size in images.shape[2:]]
    down, right = (step * _signs(len(images), generator) for step in steps)
    return _moved(images, torch.zeros_like(down), down, right)


def _noise(images: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    return images + deviation * torch.randn(images.shape, generator=generator)


def _blur(images: Tensor, pixels: float, generator: torch.Generator) -> Tensor:
    for axis in (2, 3):
        deviation = pixels * images.shape[axis] / USUAL_SIDE
        places = torch.arange(images.shape[axis], dtype=torch.float32)
        mixing = torch.softmax(-((places - places[:, None]) / deviation).square() / 2, 1)
        images = mixing @ images if axis == 2 else images @ mixing.mT
    return images


def _flat(images: Tensor, left: float, generator: torch.Generator) -> Tensor:
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + left * (images - mean)


CHANGES: dict[str, Callable[[Tensor, float, torch.Generator], Tensor]] = {
    "rotated": _rotated,
    "shifted": _shifted,
    "noise": _noise,
    "blur": _blur,
    "contrast": _flat,
}
