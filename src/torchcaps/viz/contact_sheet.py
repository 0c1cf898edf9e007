"""Many small images on one page, each with its label."""

import numpy as np
from matplotlib.figure import Figure

from torchcaps.data.sets import ImageSet
from torchcaps.data.showing import caption, even_choice

GAP = 2  # pixels between images
CELL = 0.95  # inches of an image's longer side on the page


def contact_sheet(image_set: ImageSet, *, num_images: int = 100, columns: int = 10, title: str) -> Figure:
    """A page of images with captions: their classes and, where known, instance and viewpoint.

    Every class has its share, in the order of the classes, spread evenly over the set. Pictures of two cameras stand
    side by side.

    Args:
        image_set: the images.
        num_images: how many, at most.
        columns: images in a row.
        title: of the page.
    """
    chosen = even_choice(image_set, num_images)
    tiles = [_tile(image_set.images[number]) for number in chosen]
    height, width = tiles[0].shape[:2]
    rows = -(-len(tiles) // columns)
    captions = [caption(image_set, number) for number in chosen]
    num_lines = max(text.count("\n") for text in captions) + 1
    scale = CELL / max(height, width)  # inches per pixel
    band = round(0.14 * num_lines / scale) + GAP  # pixels below an image for its caption
    page = np.full((rows * (height + band), columns * (width + GAP) - GAP, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(page.shape[1] * scale + 0.2, page.shape[0] * scale + 0.5))
    axes = figure.add_axes((0.0, 0.0, 1.0, page.shape[0] * scale / (page.shape[0] * scale + 0.5)))
    for place, (tile, text) in enumerate(zip(tiles, captions, strict=True)):
        top, left = place // columns * (height + band), place % columns * (width + GAP)
        page[top : top + height, left : left + width] = tile
        axes.text(left + width / 2, top + height, text, ha="center", va="top", fontsize=6.5)
    axes.imshow(page)
    axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    return figure


def _tile(image: np.ndarray) -> np.ndarray:
    """An image as (h, w, 3) bytes; two channels side by side."""
    if image.ndim == 3 and image.shape[2] == 2:
        image = np.concatenate([image[..., 0], image[..., 1]], axis=1)
    if image.ndim == 3 and image.shape[2] != 3:
        image = image[..., 0]
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
