"""What the pictures of routing are drawn from: votes for the classes, and the trace of how they were routed."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import Model
from torchcaps.models.capsnet import VectorCapsNet
from torchcaps.models.matrix import MatrixCapsNet
from torchcaps.nn import CapsuleNorm
from torchcaps.routing import EMRouting, FunctionRouting, Routing, RoutingResult, entry_of

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
        weights: (I,), of the children: EM routing weighs them with their activations, the others all alike
        couplings: (S, I, J), of each of S iterations
        poses: (S, J, D), of the classes, as the trace has them
        activations: (S, J), of the classes, after the norm of the layer where it has one
        objectives: (S,), what the algorithm descends
    """

    image: np.ndarray
    votes: np.ndarray
    weights: np.ndarray
    couplings: np.ndarray
    poses: np.ndarray
    activations: np.ndarray
    objectives: np.ndarray
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

    @property
    def masses(self) -> np.ndarray:
        """How much of each child goes into each class, couplings times weights: (S, I, J)."""
        return self.couplings * self.weights[:, None]

    def centres(self) -> np.ndarray:
        r"""Where the votes for each class meet: :math:`m_j = \sum_i c_{ij} w_i \hat u_{ij} / \sum_i c_{ij} w_i`.

        Shapes:
            (S, J, D)
        """
        total = self.masses.sum(1)[..., None]
        return np.einsum("sij,ijd->sjd", self.masses, self.votes) / np.maximum(total, 1e-30)


@torch.inference_mode()
def route_classes(model: Model, image: Tensor, routing: Routing | None = None) -> ClassRouting:
    """Route one image to the classes and keep what happened.

    Args:
        model: a capsule network of images.
        image: (C, H, W), after preprocessing.
        routing: takes the place of the one that the class layer was trained with; its weights stay as they are.
    """
    if not isinstance(model, VectorCapsNet | MatrixCapsNet):
        raise ValueError(f"{model.name} has no class capsules of images whose routing could be shown")
    model.eval()
    images = image[None].to(next(model.parameters()).device)
    children = model.primary(model.features(model.pad(images)))
    if isinstance(model, MatrixCapsNet):
        children = model.conv2(model.conv1(children))
    votes = model.class_capsules.votes(children)
    routing = model.class_capsules.routing if routing is None else routing
    votes_IJD = votes.materialise()[0].cpu().numpy()
    activations_I = children.activations[0].flatten().cpu().numpy()
    height, width, types = children.activations.shape[1:]
    result = routing(votes, return_trace=True)
    couplings, poses, activations, objectives = traced(result)
    if (norm := model.class_capsules.norm) is not None:
        activations = normed(norm, result)
    return ClassRouting(
        image.numpy(),
        votes_IJD,
        activations_I if isinstance(routing, EMRouting) else np.ones_like(activations_I),
        *(couplings, poses, activations, objectives),
        labels=model.labels,
        routing=routing_name(routing),
        grid=(height, width, types),
    )


def traced(result: RoutingResult) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the first example, at each iteration.

    Shapes:
        couplings (S, I, J), poses (S, J, D), activations (S, J), objectives (S,)
    """
    if result.trace is None:
        raise ValueError("the routing kept no trace; route with return_trace=True")
    coupling = result.trace[0].coupling
    if coupling.dim() != 3:
        raise ValueError(f"couplings must have shape (B, I, J), got {tuple(coupling.shape)}")
    couplings, poses, activations, objectives = (
        np.stack([entry[0].cpu().numpy() for entry in entries]) for entries in zip(*result.trace, strict=True)
    )
    return couplings, poses, activations, objectives


def normed(norm: CapsuleNorm, result: RoutingResult) -> np.ndarray:
    """Activations of the first example at each iteration as a norm after the layer makes them: (S, J)."""
    steps = [
        norm(step.poses[:1], step.activations[:1].logit(torch.finfo(step.activations.dtype).eps))
        for step in result.trace or ()
    ]
    return np.stack([capsules.activations[0].cpu().numpy() for capsules in steps])


def with_iterations(routing: Routing, num_iterations: int) -> Routing:
    """The same routing with another number of iterations; uniform coupling has but one."""
    if isinstance(routing, FunctionRouting) and "num_iterations" in routing.options:
        return routing.updated(num_iterations=num_iterations)
    return deepcopy(routing)


def routing_name(routing: Routing) -> str:
    """The name of a routing as users give it; of one of their own, its class."""
    entry = entry_of(routing)
    return type(routing).__name__ if entry is None else entry.name
