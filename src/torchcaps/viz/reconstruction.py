"""What a network sees in an image, and what each dimension of a class capsule means."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.inspection import decoder_of
from torchcaps.models import Model
from torchcaps.nn.decoder import Decoder
from torchcaps.viz.report import to_picture

OFFSETS = tuple(round(0.05 * step, 2) for step in range(-5, 6))  # as in figure 4 of Sabour, Frosst and Hinton (2017)


@torch.inference_mode()
def reconstructions(model: Model, images: Tensor, truth: Sequence[str] | None = None) -> Figure:
    """Images (above), their reconstructions from the most active class (middle) and where they differ (below).

    Args:
        model: with a decoder.
        images: (n, C, H, W), after preprocessing.
        truth: n names of the true classes, where they are known.
    """
    decoder_of(model)
    output = model(images.to(next(model.parameters()).device))
    assert output.reconstruction is not None
    answers = [model.labels[index] for index in output.scores.argmax(-1).tolist()]
    figure = Figure(figsize=(max(1.2 + 1.05 * len(images), 7.5), 4.6), layout="constrained")
    rows = figure.subplots(3, len(images), squeeze=False)
    for column, (image, decoded) in enumerate(zip(images.numpy(), output.reconstruction.cpu().numpy(), strict=True)):
        difference = np.abs(image - decoded).mean(0)
        for axes, picture in zip(rows[:, column], (to_picture(image), to_picture(decoded)), strict=False):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1)
        shown = rows[2, column].imshow(difference, cmap="cividis", vmin=0, vmax=1)
        if truth is not None:
            rows[0, column].set_title(f"true {truth[column]}", fontsize=9)
        rows[1, column].set_title(f"answer {answers[column]}", fontsize=9)
        rows[2, column].set_title(f"{difference.mean():.3f}", fontsize=9)
    for axes, name in zip(rows[:, 0], ("image", "reconstruction", "difference"), strict=True):
        axes.set_ylabel(name)
    for axes in rows.flat:
        axes.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=list(rows[2]), label="brightness", pad=0.01)
    figure.suptitle("Reconstructions, with the mean absolute difference per pixel (brightness 0 to 1)", fontsize=12)
    return figure


@torch.inference_mode()
def capsule_dimensions(model: Model, image: Tensor, *, offsets: Sequence[float] = OFFSETS) -> Figure:
    """What is decoded when one entry of the winning class's pose moves: a row per entry, a column per offset.

    Args:
        model: with a decoder.
        image: (C, H, W), after preprocessing.
        offsets: what is added to an entry; the poses are at most 1 long.
    """
    decoder = decoder_of(model)
    output = model(image[None].to(next(model.parameters()).device))
    best = int(output.scores.argmax())
    decoded = decoded_offsets(decoder, output.poses, best, offsets)
    num_dimensions, num_offsets = decoded.shape[:2]
    figure = Figure(figsize=(1.0 + 0.62 * num_offsets, 1.3 + 0.62 * num_dimensions))
    figure.subplots_adjust(left=0.11, right=0.98, top=0.93, bottom=0.05, hspace=0.05, wspace=0.05)
    rows = figure.subplots(num_dimensions, num_offsets, squeeze=False)
    for dimension, row in enumerate(rows):
        for axes, picture, offset in zip(row, decoded[dimension], offsets, strict=True):
            axes.imshow(to_picture(picture), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if dimension == 0:
                axes.set_title(f"{offset:+.2f}" if offset else "as is", fontsize=8)
        row[0].set_ylabel(dimension + 1, rotation=0, ha="right", va="center", fontsize=9)
    figure.supylabel("entry of the pose", fontsize=10)
    figure.supxlabel("added to the entry, pose units (a pose is at most 1 long)", fontsize=10)
    figure.suptitle(f"What each entry of the capsule of class {model.labels[best]} changes", fontsize=12)
    return figure


@torch.inference_mode()
def decoded_offsets(decoder: Decoder, poses: Tensor | None, chosen: int, offsets: Sequence[float]) -> np.ndarray:
    """Images decoded with each entry of one class's pose moved by each offset.

    Shapes:
        poses: (1, J, D) -> (D, offsets, C, H, W)
    """
    assert poses is not None
    size = poses.shape[-1]
    moved_DOJD = poses.expand(size, len(offsets), *poses.shape[1:]).clone()
    moves_DOD = torch.eye(size).unsqueeze(1) * torch.tensor(offsets, dtype=torch.float32).view(1, -1, 1)
    moved_DOJD[:, :, chosen] += moves_DOD.to(poses)
    classes = torch.full((size * len(offsets),), chosen, device=poses.device)
    pictures = decoder(Capsules.from_poses(moved_DOJD.flatten(0, 1)), classes)
    return pictures.unflatten(0, (size, len(offsets))).cpu().numpy()
