"""What the pictures of routing are drawn from: votes for the classes, and the trace of how they were routed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import Model
from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.routing import RoutingResult

# Okabe and Ito's colours, told apart by the colour-blind; every use adds a marker or line style of its own for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "^", "s", "D", "v")


class ClassRouting(NamedTuple):
    """One image on its way into the class capsules.

    Attributes:
        labels: J names of the classes.
        routing: name of the algorithm.
        grid: (height, width, types) of the children.

    Shapes:
        image: (C, H, W), as the model sees it
        votes: (I, J, D)
        couplings: (S, I, J), of each of S iterations
        activations: (S, J), of the classes
    """

    image: np.ndarray
    votes: np.ndarray
    couplings: np.ndarray
    activations: np.ndarray
    labels: Sequence[str]
    routing: str
    grid: tuple[int, int, int]

    @property
    def strongest(self) -> list[int]:
        """The classes from the most active to the least."""
        return np.argsort(-self.activations[-1], kind="stable").tolist()

    @property
    def title(self) -> str:
        """The answer and how it was found, for the head of a picture."""
        best = self.strongest[0]
        return f"answer {self.labels[best]} (activation {self.activations[-1, best]:.2f}), {self.routing} routing"

    def centres(self) -> np.ndarray:
        r"""Where the votes for each class meet: :math:`m_j = \sum_i c_{ij} \hat u_{ij} / \sum_i c_{ij}`.

        Shapes:
            (S, J, D)
        """
        mass = self.couplings.sum(1)[..., None]
        return np.einsum("sij,ijd->sjd", self.couplings, self.votes) / np.maximum(mass, 1e-30)


@torch.inference_mode()
def route_classes(model: Model, image: Tensor) -> ClassRouting:
    """Route one image to the classes and keep what happened.

    Args:
        model: a capsule network of images.
        image: (C, H, W), after preprocessing.
    """
    if not isinstance(model, VectorCapsNet | MatrixCapsNet):
        raise ValueError(f"{model.name} has no class capsules of images whose routing could be shown")
    model.eval()
    images = image[None].to(next(model.parameters()).device)
    children = model.primary(model.features(model.pad(images)))
    if isinstance(model, MatrixCapsNet):
        children = model.conv2(model.conv1(children))
    result = model.class_capsules.route(children, return_trace=True)
    couplings, activations = traced(result)
    height, width, types = children.activations.shape[1:]
    return ClassRouting(
        image=image.numpy(),
        votes=model.class_capsules.votes(children).materialise()[0].cpu().numpy(),
        couplings=couplings,
        activations=activations,
        labels=model.labels,
        routing=str(model.options["routing"]),
        grid=(height, width, types),
    )


def traced(result: RoutingResult) -> tuple[np.ndarray, np.ndarray]:
    """Couplings (S, I, J) and activations (S, J) of the first example at each iteration."""
    if result.trace is None:
        raise ValueError("the routing kept no trace; route with return_trace=True")
    couplings = np.stack([step.coupling[0].cpu().numpy() for step in result.trace])
    if couplings.ndim != 3:
        raise ValueError(f"couplings must have shape (B, I, J), got {tuple(result.trace[0].coupling.shape)}")
    return couplings, np.stack([step.activations[0].cpu().numpy() for step in result.trace])
