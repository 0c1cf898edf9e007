"""Random changes to training images, a whole batch at a time."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcaps.checks import check_choice, check_count

if TYPE_CHECKING:
    from torch import Generator, Tensor

# Each image draws this many numbers whatever is switched on, so that one option does not disturb another; mirrors draw
# one more where they are, so that runs older than they can be done again.
DRAWS = ("down", "right", "rotation", "scale", "shear", "crop_row", "crop_column", "contrast", "brightness")
MIRRORS = ("plain", "stereo")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random mirror, shift, affine map, crop, contrast and brightness, drawn anew for each image.

    Half of the images are mirrored, if any are. A point p of an image, seen from its centre, moves to
    s R(a) [[1, k], [0, 1]] p + t. What comes from outside the image is 0: black for images in [0, 1], the mean of the
    image for standardised ones. Without rotation, scale and shear a shift moves pixels and interpolates nothing. Then
    the crop is taken; then, channel by channel, x -> mean + c (x - mean) + b. Values are not clamped.

    Args:
        shift: t is a whole number of pixels up to this, in each direction. CapsNet on MNIST: 2.
        rotation: a lies within this many degrees to either side.
        scale: s lies between 1 / (1 + scale) and 1 + scale, evenly in its logarithm.
        shear: k lies between -shear and shear.
        brightness: b lies between -brightness and brightness.
        contrast: c lies between 1 - contrast and 1 + contrast.
        crop: (height, width) of a crop at a random place; the whole image when not given.
        mirror: "plain" turns left and right around; "stereo" also the order of the channels, which are cameras from
            left to right: in a mirror the left eye sees what the right one would.

    Example:
        >>> import torch
        >>> images = torch.rand(2, 1, 48, 48)
        >>> augmentation = Augmentation(crop=(32, 32), brightness=0.2, contrast=0.5)
        >>> augmentation(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 32, 32])
        >>> torch.equal(Augmentation()(images, torch.Generator().manual_seed(0)), images)
        True
    """

    shift: int = 0
    rotation: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    crop: tuple[int, int] | None = None
    mirror: str | None = None

    def __post_init__(self) -> None:
        if self.mirror is not None:
            check_choice("mirror", self.mirror, MIRRORS)
        check_count("shift", self.shift, least=0)
        for name in ("rotation", "scale", "shear", "brightness", "contrast"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
        if self.contrast > 1:
            raise ValueError(f"contrast must be at most 1 (beyond it images turn into negatives), got {self.contrast}")
        if self.crop is not None:
            height, width = self.crop
            object.__setattr__(self, "crop", (check_count("crop height", height), check_count("crop width", width)))

    def __call__(self, images: "Tensor", generator: "Generator") -> "Tensor":
        """Change every image at random; the same state of the generator gives the same result.

        Image after image draws the same number of random numbers, so a batch gives what its images give one by one.

        Shapes:
            images: floating point (B, C, H, W) -> (B, C, H, W), or (B, C, *crop)
        """
        import torch

        if images.dim() != 4 or not images.is_floating_point():
            raise ValueError(
                f"images must be floating point of shape (B, C, H, W), got {images.dtype} of {tuple(images.shape)}"
            )
        if self.crop is not None and (self.crop[0] > images.shape[2] or self.crop[1] > images.shape[3]):
            raise ValueError(f"a crop of {self.crop} does not fit into images of {tuple(images.shape[2:])}")
        uniform = self.draw(len(images), generator)
        draws = dict(zip(self._draws, uniform.to(images.device).unbind(1), strict=True))

        if self.mirror is not None:
            mirrored = images.flip((1, 3) if self.mirror == "stereo" else 3)
            images = torch.where(draws["mirror"].view(-1, 1, 1, 1) < 0.5, mirrored, images)
        down_B, right_B = (_whole(draws[name], -self.shift, self.shift) for name in ("down", "right"))
        if self.rotation or self.scale or self.shear:
            images = warp(images, self._inverse_maps(draws), down_B, right_B)
        elif self.shift:
            size = tuple(images.shape[2:])
            padded = torch.nn.functional.pad(images, (self.shift,) * 4)
            images = _window(padded, self.shift - down_B, self.shift - right_B, size)
        if self.crop is not None:
            row_B = _whole(draws["crop_row"], 0, images.shape[2] - self.crop[0])
            column_B = _whole(draws["crop_column"], 0, images.shape[3] - self.crop[1])
            images = _window(images, row_B, column_B, self.crop)
        if self.contrast:
            factor_B = _between(draws["contrast"], 1 - self.contrast, 1 + self.contrast)
            mean_BC11 = images.mean((2, 3), keepdim=True)
            images = mean_BC11 + factor_B.to(images.dtype).view(-1, 1, 1, 1) * (images - mean_BC11)
        if self.brightness:
            amount_B = _between(draws["brightness"], -self.brightness, self.brightness)
            images = images + amount_B.to(images.dtype).view(-1, 1, 1, 1)
        return images

    def _inverse_maps(self, draws: "dict[str, Tensor]") -> "Tensor":
        """[[1, -k], [0, 1]] R(-a) / s for each image, on points (column, row): (B, 2, 2)."""
        import torch

        angle_B = _between(draws["rotation"], -self.rotation, self.rotation) * (math.pi / 180)
        shear_B = _between(draws["shear"], -self.shear, self.shear)
        shrink_B = (-_between(draws["scale"], -1, 1) * math.log1p(self.scale)).exp()
        cosine_B, sine_B = shrink_B * angle_B.cos(), shrink_B * angle_B.sin()
        entries = (cosine_B + shear_B * sine_B, sine_B - shear_B * cosine_B, -sine_B, cosine_B)
        return torch.stack(entries, dim=1).unflatten(1, (2, 2))

    @property
    def _draws(self) -> tuple[str, ...]:
        return DRAWS if self.mirror is None else (*DRAWS, "mirror")

    def draw(self, num: int, generator: "Generator") -> "Tensor":
        """The random numbers of `num` images, (num, draws); also a way to skip those of images that come before."""
        import torch

        return torch.rand(num, len(self._draws), generator=generator, device=generator.device)


def _between(uniform: "Tensor", low: float, high: float) -> "Tensor":
    return low + (high - low) * uniform


def _whole(uniform: "Tensor", low: int, high: int) -> "Tensor":
    """Whole numbers from low to high, both included, each as likely as the others."""
    return low + (uniform * (high - low + 1)).floor().long()


def _window(images: "Tensor", rows_B: "Tensor", columns_B: "Tensor", size: tuple[int, ...]) -> "Tensor":
    """The window of each image whose first pixel lies at (row, column)."""
    import torch

    places_BRSCHW = images.unfold(2, size[0], 1).unfold(3, size[1], 1).permute(0, 2, 3, 1, 4, 5)
    return places_BRSCHW[torch.arange(len(images), device=images.device), rows_B, columns_B]


def warp(images: "Tensor", inverse_maps_B22: "Tensor", down_B: "Tensor", right_B: "Tensor") -> "Tensor":
    """Move each point p, seen from the centre, to M p + t, with bilinear interpolation."""
    import torch
    import torch.nn.functional as F

    height, width = images.shape[2:]
    columns_W = torch.arange(width, device=images.device) - (width - 1) / 2
    rows_H = torch.arange(height, device=images.device) - (height - 1) / 2
    target_HW2 = torch.stack(torch.meshgrid(columns_W, rows_H, indexing="xy"), dim=-1)
    # Every pixel asks where it comes from: M^-1 (p - t). The grid runs from -1 to 1 over the whole image.
    shift_B112 = torch.stack((right_B, down_B), dim=1).view(-1, 1, 1, 2)
    source_BHW2 = (target_HW2 - shift_B112) @ inverse_maps_B22.mT.unsqueeze(1)
    grid_BHW2 = source_BHW2 / torch.tensor((width / 2, height / 2), device=images.device)
    return F.grid_sample(images, grid_BHW2.to(images.dtype), mode="bilinear", padding_mode="zeros", align_corners=False)
