"""What a network sees in images, and what each entry of a class's pose changes, by its decoder."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.inspection.directions import decoder_of
from torchcaps.inspection.routes import evaluating
from torchcaps.models import Model
from torchcaps.nn.decoder import Decoder

OFFSETS = tuple(round(0.05 * step, 2) for step in range(-5, 6))  # as in figure 4 of Sabour, Frosst and Hinton (2017)


class Reconstructions(NamedTuple):
    """Images and what is decoded from the most active class of each.

    Attributes:
        answers: n names of these classes.

    Shapes:
        images, decoded: (n, C, H, W)
    """

    images: np.ndarray
    decoded: np.ndarray
    answers: Sequence[str]


class MovedEntries(NamedTuple):
    """What is decoded when one entry of a class's pose moves.

    Attributes:
        label: name of the class.
        offsets: what was added to an entry, O of them.

    Shapes:
        decoded: (D, O, C, H, W)
    """

    label: str
    offsets: Sequence[float]
    decoded: np.ndarray


@torch.inference_mode()
def reconstruct(model: Model, images: Tensor) -> Reconstructions:
    """Decode the most active class of each image.

    Args:
        model: with a decoder.
        images: (n, C, H, W), after preprocessing.
    """
    decoder_of(model)
    with evaluating(model):
        output = model(images.to(next(model.parameters()).device))
    assert output.reconstruction is not None
    answers = [model.labels[index] for index in output.scores.argmax(-1).tolist()]
    return Reconstructions(images.cpu().numpy(), output.reconstruction.cpu().numpy(), answers)


@torch.inference_mode()
def move_entries(model: Model, image: Tensor, *, offsets: Sequence[float] = OFFSETS) -> MovedEntries:
    """Move each entry of the pose of an image's most active class, and decode.

    Args:
        model: with a decoder.
        image: (C, H, W), after preprocessing.
        offsets: what is added to an entry; the poses are at most 1 long.
    """
    decoder = decoder_of(model)
    with evaluating(model):
        output = model(image[None].to(next(model.parameters()).device))
    assert output.poses is not None
    best = int(output.scores.argmax())
    return MovedEntries(model.labels[best], offsets, decoded_offsets(decoder, output.poses, best, offsets))


@torch.inference_mode()
def decoded_offsets(decoder: Decoder, poses: Tensor, chosen: int, offsets: Sequence[float]) -> np.ndarray:
    """Images decoded with each entry of one class's pose moved by each offset.

    Shapes:
        poses: (1, J, D) -> (D, offsets, C, H, W)
    """
    size = poses.shape[-1]
    moved_DOJD = poses.expand(size, len(offsets), *poses.shape[1:]).clone()
    moves_DOD = torch.eye(size).unsqueeze(1) * torch.tensor(offsets, dtype=torch.float32).view(1, -1, 1)
    moved_DOJD[:, :, chosen] += moves_DOD.to(poses)
    classes = torch.full((size * len(offsets),), chosen, device=poses.device)
    pictures = decoder(Capsules.from_poses(moved_DOJD.flatten(0, 1)), classes)
    return pictures.unflatten(0, (size, len(offsets))).cpu().numpy()
