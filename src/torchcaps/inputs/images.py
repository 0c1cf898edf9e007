"""From raw images to what a model takes: saved with the model, so that whoever loads it prepares images alike."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.checks import check_choice, check_count
from torchcaps.inputs.base import Taken
from torchcaps.inputs.source import Examples, Source

__all__ = ["Preprocessing"]

SCALINGS = ("unit", "standardise", "standardise_crop", "local_contrast")
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green, blue: ITU-R BT.601
# A deviation below this is rounding: one pixel of 1000 x 1000 that differs by one of 255 levels has 3.9e-6.
CONSTANT_DEVIATION = 1e-6
NEIGHBOURHOOD = 0.03  # of the sides of an image: the deviation of the Gaussian by which neighbours of a pixel count


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Channels, size, scale, centre crop, in this order.

    A size that is a whole fraction of the image's, in both directions, takes means of blocks (96 -> 48); any other
    size is interpolated bilinearly, with antialiasing. The aspect ratio is not kept.

    Args:
        image_size: (height, width) to which images are resized.
        channels: Channels of the result. One from three is the luminance; three from one repeats it.
        scaling: "unit": between 0 and 1. "standardise": each image, all channels together, to zero mean and unit
            variance. "standardise_crop": once more after the crop was taken, so that what lies outside of it does not
            count. "local_contrast": each pixel less the mean of its neighbourhood, over the deviation there, or that of
            the whole image where it is larger (Jarrett et al. 2009): edges count, not how bright a surface is. A
            constant image becomes 0.
        crop: (height, width) of the centre crop; None for the whole image.

    Example:
        >>> preprocessing = Preprocessing(image_size=(48, 48), channels=2, scaling="standardise", crop=(32, 32))
        >>> preprocessing(np.zeros((5, 96, 96, 2), dtype=np.uint8)).shape
        torch.Size([5, 2, 32, 32])
    """

    kind: ClassVar[str] = "image"

    image_size: tuple[int, int] = (28, 28)
    channels: int = 1
    scaling: str = "unit"
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", _size("image_size", self.image_size))
        check_count("channels", self.channels)
        check_choice("scaling", self.scaling, SCALINGS)
        if self.crop is not None:
            object.__setattr__(self, "crop", _size("crop", self.crop))
            if self.crop[0] > self.image_size[0] or self.crop[1] > self.image_size[1]:
                raise ValueError(f"a crop of {self.crop} does not fit into images of {self.image_size}")

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image as the model takes it."""
        return (self.channels, *(self.crop or self.image_size))

    def __call__(self, images: "np.ndarray | Tensor") -> Tensor:
        """Prepare raw images.

        Shapes:
            images: uint8, or floating point between 0 and 1, (n, h, w) or (n, h, w, c) -> float32 (n, C, H, W)
        """
        return self.after_crop(self.centre_crop(images))

    def centre_crop(self, images: "np.ndarray | Tensor") -> Tensor:
        """Everything up to the crop, for training that changes images without cropping them.

        Shapes:
            images: uint8, or floating point between 0 and 1, (n, h, w) or (n, h, w, c) -> float32 (n, C, H, W)
        """
        return self._cropped(self.before_crop(images), *self._crop_corners(1)[0])

    def after_crop(self, images_NCHW: Tensor) -> Tensor:
        """What is done to crops: nothing, unless they are standardised one by one."""
        return _standardised(images_NCHW, is_local=False) if self.scaling == "standardise_crop" else images_NCHW

    def before_crop(self, images: "np.ndarray | Tensor") -> Tensor:
        """Everything but the crop, for training that crops at random.

        Shapes:
            images: uint8, or floating point between 0 and 1, (n, h, w) or (n, h, w, c) -> float32 (n, C, *image_size)
        """
        images_NCHW = _resized(self._with_channels(_as_fractions(images)), self.image_size)
        if self.scaling == "unit":
            return images_NCHW
        return _standardised(images_NCHW, is_local=self.scaling == "local_contrast")

    def crops(self, images: "np.ndarray | Tensor", num: int) -> Tensor:
        """Several crops of each image, for predictions that average over them.

        The first is the centre; the others come from the coarsest even grid that has enough places, those farthest
        from the centre first: five crops are the centre and the corners, nine a 3 x 3 grid.

        Shapes:
            images: as in a call -> float32 (n, num, C, H, W)
        """
        corners = self._crop_corners(check_count("num", num))
        images_NCHW = self.before_crop(images)
        return torch.stack([self.after_crop(self._cropped(images_NCHW, *corner)) for corner in corners], dim=1)

    def open(self, examples: Examples) -> Source:
        """What batches are read from: images are prepared when they are read."""
        return Source(examples)

    def stack(self, images: "np.ndarray | Tensor") -> Tensor:
        """What was read from an open source, as the model takes it: float32 (n, C, H, W)."""
        return self(images)

    def augmented(
        self, images: "np.ndarray | Tensor", change: Callable[[Tensor], Tensor], *, is_cropping: bool
    ) -> Tensor:
        """Prepare images that are changed on the way; a change that crops takes the place of the centre crop.

        Shapes:
            images: as in a call -> float32 (n, C, H, W)
        """
        prepare = self.before_crop if is_cropping else self.centre_crop
        return self.after_crop(change(prepare(images)))

    def parts(self, images: "np.ndarray | Tensor", size: int) -> Iterator[tuple[slice, Any]]:
        """Raw images cut into parts of at most `size`, each with its place among them."""
        for start in range(0, len(images), size):
            yield slice(start, start + size), images[start : start + size]

    def taken(self) -> Taken:
        """Prepared images: float32 (C, H, W)."""
        return Taken("images", self.output_shape, "float32")

    def taken_raw(self, size: tuple[int, int] | None = None) -> Taken:
        """Raw images of a size, by default that to which they are resized: uint8 (h, w, c)."""
        return Taken("images", (*(size or self.image_size), self.channels), "uint8")

    def steps(self) -> dict[str, Any]:
        """The options."""
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON knows them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "Preprocessing":
        """What `to_dict` gave."""
        for name in options:
            check_choice("an option of preprocessing", name, [field.name for field in fields(cls)])
        return cls(**options)

    def _with_channels(self, images_NCHW: Tensor) -> Tensor:
        came = images_NCHW.shape[1]
        if came == self.channels:
            return images_NCHW
        if came == 3 and self.channels == 1:
            return torch.einsum("nchw,c->nhw", images_NCHW, images_NCHW.new_tensor(LUMINANCE)).unsqueeze(1)
        if came == 1 and self.channels == 3:
            return images_NCHW.expand(-1, 3, -1, -1)
        raise ValueError(f"images must have {self.channels} channels (the last axis), got {came}")

    def _cropped(self, images_NCHW: Tensor, row: int, column: int) -> Tensor:
        _, height, width = self.output_shape
        return images_NCHW[:, :, row : row + height, column : column + width].contiguous()

    def _crop_corners(self, num: int) -> list[tuple[int, int]]:
        """First row and column of each crop, the centre crop first."""
        _, height, width = self.output_shape
        margins = self.image_size[0] - height, self.image_size[1] - width
        centre = margins[0] // 2, margins[1] // 2
        num_places = (margins[0] + 1) * (margins[1] + 1)
        if num > num_places:
            raise ValueError(
                f"images of {self.image_size} have {num_places} different crops of {(height, width)}, "
                f"{num} were asked for; ask for fewer or choose a smaller crop"
            )
        others: list[tuple[int, int]] = []
        num_steps = 1
        while len(others) < num - 1:
            rows, columns = ({round(margin * step / num_steps) for step in range(num_steps + 1)} for margin in margins)
            others = [corner for corner in product(sorted(rows), sorted(columns)) if corner != centre]
            num_steps += 1
        others.sort(key=lambda corner: -((2 * corner[0] - margins[0]) ** 2 + (2 * corner[1] - margins[1]) ** 2))
        return [centre, *others[: num - 1]]


def _size(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError(f"{name} must be (height, width), got {value!r}")
    return check_count(f"{name}[0]", value[0]), check_count(f"{name}[1]", value[1])


def _as_fractions(images: "np.ndarray | Tensor") -> Tensor:
    """float32 (n, c, h, w) between 0 and 1; values are checked here and nowhere later."""
    if isinstance(images, np.ndarray) and (images.dtype == np.uint8 or images.dtype.kind == "f"):
        # A copy, because torch takes neither reversed nor read-only arrays.
        images = torch.from_numpy(images.astype(np.uint8 if images.dtype == np.uint8 else np.float32))
    if not isinstance(images, Tensor) or not (images.dtype == torch.uint8 or images.is_floating_point()):
        came = getattr(images, "dtype", type(images).__name__)
        raise TypeError(f"images must be a numpy array or torch.Tensor of uint8 or floating point, got {came}")
    if images.dim() not in (3, 4) or 0 in images.shape[1:]:
        raise ValueError(
            f"images must have shape (n, h, w) or (n, h, w, c), got {tuple(images.shape)}; one image is images[None]"
        )
    images_NCHW = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
    if images.dtype == torch.uint8:
        return images_NCHW.to(torch.float32) / 255
    if not bool(((images >= 0) & (images <= 1)).all()):  # NaN fails too
        raise ValueError("floating-point images must lie between 0 and 1; give uint8 for values up to 255")
    return images_NCHW.to(torch.float32)


def _standardised(images_NCHW: Tensor, *, is_local: bool) -> Tensor:
    """Each image less its mean, over its deviation; or less those of the neighbourhood of each pixel."""
    mean = _mean_of_neighbours(images_NCHW) if is_local else images_NCHW.mean((1, 2, 3), keepdim=True)
    centred_NCHW = images_NCHW - mean
    squares_NCHW = centred_NCHW.square()
    variance_N111 = squares_NCHW.mean((1, 2, 3), keepdim=True)
    is_constant = variance_N111.sqrt() < CONSTANT_DEVIATION
    # masked before the root, whose slope at 0 is infinite: attacks differentiate through here
    variance = variance_N111.masked_fill(is_constant, 1.0)
    if is_local:
        variance = torch.maximum(_mean_of_neighbours(squares_NCHW), variance)
    return (centred_NCHW / variance.sqrt()).masked_fill(is_constant, 0.0)


def _mean_of_neighbours(images_NCHW: Tensor) -> Tensor:
    """The mean around each pixel, weighted by a Gaussian; beyond the border there is nothing to be counted."""
    rows, columns = (_neighbours(size).to(images_NCHW) for size in images_NCHW.shape[2:])
    return rows @ images_NCHW @ columns.mT


def _neighbours(size: int) -> Tensor:
    """What each of the others counts in the mean around a pixel, along one side of an image: (size, size)."""
    places = torch.arange(size, dtype=torch.float32)
    steps = (places - places.unsqueeze(1)) / (NEIGHBOURHOOD * size)
    return torch.softmax(-steps.square() / 2, dim=1)


def _resized(images_NCHW: Tensor, size: tuple[int, int]) -> Tensor:
    height, width = images_NCHW.shape[2:]
    if (height, width) == size:
        return images_NCHW
    if height % size[0] == 0 and width % size[1] == 0:
        return F.avg_pool2d(images_NCHW, (height // size[0], width // size[1]))
    return F.interpolate(images_NCHW, size=size, mode="bilinear", align_corners=False, antialias=True)
