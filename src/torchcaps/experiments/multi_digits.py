"""Two digits in one picture: one over the other, and side by side after training on single digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import ImageSet
from torchcaps.data.made import make_sets
from torchcaps.experiments.digits import ROUTINGS, digits_run
from torchcaps.experiments.harness import Experiment, Row, Scale, test_error
from torchcaps.models import ImageModel, create_model
from torchcaps.predictor import load
from torchcaps.runs import RunConfig, load_run_data
from torchcaps.viz.digit_pairs import digit_pairs

BOTH_WRONG = "pairs not both right, %"
NOT_SURE = "pairs not both right and both above 0.5, %"
PICTURE = "pairs.png"
NUM_SHOWN = 8
OVERLAPPING, SIDE_BY_SIDE = "one over the other", "side by side, trained on single digits"
EPOCHS: Mapping[Scale, tuple[int, int]] = {"full": (2, 1), "quick": (1, 2)}  # on pairs, on single digits
LONG_EPOCHS = 10  # of one network on pairs
# At the usual weight of 0.0005 the pose of a class keeps one direction in all pictures (after ten epochs the mean of
# its unit vectors is 0.99 long) and the decoder draws the mean digit. With twenty times the weight drawings begin to
# lean as the digits do, and no more in so few epochs; on single digits full transformations helped more than weight.
DRAWING_EPOCHS, DRAWING_WEIGHT = 4, 0.01
# Between two digits a child sees the end of one beside nothing, as it does in a digit moved to the edge. Tried with
# K-Means on pairs of held-out training digits, seed 0: 64 % right after two epochs of 6,000 digits moved by up to 2
# pixels, 95 % after two of 15,000 moved by up to 6.
SHIFT, LEARNING_RATE = 6, 1e-3


def overlap_error(folder: Path) -> dict[str, float]:
    """Share of pairs whose two most active classes are not the two digits; draws what is seen of each digit."""
    model, test = _model(folder), load_run_data(RunConfig.read(folder)).test
    assert isinstance(test, ImageSet)
    scores = all_scores(model, test.images)
    draw_pairs(model, test, folder / PICTURE)
    return pair_errors(scores, test.labels, are_activations=model.gives_activations)


def side_by_side_error(folder: Path) -> dict[str, float]:
    """The error on single digits and, with the same weights on pictures twice as wide, on pairs of test digits."""
    test = load_run_data(RunConfig.read(folder)).test
    assert isinstance(test, ImageSet)
    _, pairs = make_sets("side-by-side", test, test)
    assert pairs is not None
    model = resized(_model(folder), pairs.images.shape[1:])
    errors = pair_errors(all_scores(model, pairs.images), pairs.labels, are_activations=model.gives_activations)
    return errors | test_error(folder)


def resized(model: ImageModel, size: tuple[int, ...]) -> ImageModel:
    """A model with the same weights for pictures of another size, without decoder.

    Its layers must not depend on the size: convolutions, capsules with shared weights, adaptive pooling.
    """
    options = model.options | {"image_shape": (model.image_shape[0], *size)}
    options |= {"reconstruct": False} if "reconstruct" in options else {}
    other = create_model(model.name, num_classes=model.num_classes, multi_label=model.multi_label, **options)
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("decoder.")}
    other.load_state_dict(kept)
    assert isinstance(other, ImageModel)
    return other.eval()


def pair_errors(scores: Tensor, labels: np.ndarray, *, are_activations: bool) -> dict[str, float]:
    """Shares of pairs that were not recognised: both digits must be the two classes with the highest scores.

    Args:
        scores: of each class.
        labels: which classes are there.
        are_activations: tell also how often both digits are found with an activation above 0.5.

    Shapes:
        scores: (n, J); labels: bool (n, J)
    """
    two = scores.topk(2, dim=1)
    found = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, two.indices, True)
    is_right = (found.cpu().numpy() == labels).all(1)
    errors = {BOTH_WRONG: 100 * float(1 - is_right.mean())}
    if are_activations:
        errors[NOT_SURE] = 100 * float(1 - (is_right & (two.values[:, 1] > 0.5).cpu().numpy()).mean())
    return errors


@torch.inference_mode()
def all_scores(model: ImageModel, images: np.ndarray, *, batch_size: int = 250) -> Tensor:
    """Scores of all classes for raw images: (n, J)."""
    device = next(model.parameters()).device
    return torch.cat(
        [
            model(model.preprocessing(images[begin : begin + batch_size]).to(device)).scores
            for begin in range(0, len(images), batch_size)
        ]
    )


@torch.inference_mode()
def draw_pairs(model: ImageModel, test: ImageSet, path: Path) -> None:
    """What the decoder makes of each of the two most active classes alone, where there is a decoder."""
    images = model.preprocessing(test.images[:NUM_SHOWN])
    classes = model(images).scores.topk(2, dim=1).indices
    decoded = [model(images, classes[:, number]).reconstruction for number in range(2)]
    if any(picture is None for picture in decoded):
        return
    digit_pairs(
        images[:, 0].numpy(),
        np.stack([picture[:, 0].numpy() for picture in decoded if picture is not None], axis=1),
        [" and ".join(str(digit) for digit in np.flatnonzero(row)) for row in test.labels[:NUM_SHOWN]],
        [[model.labels[index] for index in row] for row in classes.tolist()],
    ).savefig(path, dpi=150)


def rows(scale: Scale, data: str) -> list[Row]:
    """`data` are single digits; the pairs are made from them, or from the embedded ones in a quick run."""
    return [*_side_by_side(scale, data), *_overlapping(scale)]


def _side_by_side(scale: Scale, data: str) -> list[Row]:
    published = {"dynamic, r = 3": (9.0, "Su 2018, his earlier version"), "K-Means, r = 2": (5.0, "Su 2018, at most")}
    models: list[tuple[str, str, dict[str, Any]]] = [
        (name, "capsnet-shared", {"routing": routing, "routing_options": options})
        for name, (routing, options) in ROUTINGS.items()
    ]
    return [
        Row(
            name=f"side by side: {name}",
            config=digits_run(
                *(scale, data, model),
                epochs=EPOCHS[scale][1],
                shift=SHIFT,
                training={"learning_rate": LEARNING_RATE},
                **options,
            ),
            published={BOTH_WRONG: published[name][0]} if name in published else {},
            where=published[name][1] if name in published else "",
            group=SIDE_BY_SIDE,
            measure=side_by_side_error,
        )
        for name, model, options in [*models, ("CNN, small (no routing)", "cnn-small", {})]
    ]


def _overlapping(scale: Scale) -> list[Row]:
    published = {"dynamic, r = 3": 5.2, "CNN, 4.2 M": 8.1}
    short = EPOCHS[scale][0]
    models: list[tuple[str, str, int, dict[str, Any]]] = [
        (name, "capsnet-small", short, {"routing": routing, "routing_options": options})
        for name, (routing, options) in ROUTINGS.items()
    ]
    models += [
        ("no routing", "no-routing", short, {}),
        ("CNN, small", "cnn-small", short, {}),
        ("CNN, 4.2 M", "cnn-baseline", short, {}),
    ]
    if scale == "full":
        drawing = {"training": {"reconstruction_weight": DRAWING_WEIGHT}}
        models += [
            (f"dynamic, r = 3, {LONG_EPOCHS} epochs", "capsnet-small", LONG_EPOCHS, {}),
            (f"dynamic, r = 3, reconstruction weighs {DRAWING_WEIGHT}", "capsnet-small", DRAWING_EPOCHS, drawing),
        ]
    return [
        Row(
            name=f"overlapping: {name}",
            config=digits_run(scale, "multimnist", model, epochs=epochs, shift=0, **options),
            published={BOTH_WRONG: published[name]} if name in published else {},
            where="Sabour et al., text",
            group=OVERLAPPING,
            measure=overlap_error,
        )
        for name, model, epochs, options in models
    ]


def _model(folder: Path) -> ImageModel:
    model = load(folder).model
    assert isinstance(model, ImageModel)
    return model


EXPERIMENT = Experiment(
    name="multi-digits",
    title="two digits in one picture",
    source='S. Sabour, N. Frosst, G. E. Hinton, "Dynamic routing between capsules", NIPS 2017; J. Su, "From K-Means to '
    'capsules", 2018',
    data={"quick": "digits", "full": "mnist"},
    takes={"quick": "a few minutes", "full": "about 2.5 hours a seed on one busy core"},
    rows=rows,
    remark="Both digits must be the two classes with the highest scores. Side by side: children at all places share "
    "their weights, so that a network trained on 28 x 28 pixels (digits moved by up to 6) runs on 28 x 56; a fully "
    "connected classifier of poses cannot, so the baselines are uniform coupling and a CNN with pooling. The paper's "
    "MultiMNIST has 60 million training pairs and CapsNet 8.2 M parameters; ours is made anew in every epoch, "
    "CapsNet-Small has 142 K. Its decoder learns the whole picture from the poses of both digits.",
)
