"""Votes for the classes, and the trace of how they were routed."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch

from torchcaps.inspection.routes import Routes
from torchcaps.nn import CapsuleNorm
from torchcaps.routing import FunctionRouting, Routing, RoutingResult, entry_of


class ClassRouting(NamedTuple):
    """One image or text on its way into the class capsules.

    Attributes:
        labels: J names of the classes.
        routing: name of the algorithm.
        grid: axes of the children: (height, width, types) of an image, (positions, types) of a text.

    Shapes:
        inputs: (C, H, W) or (T,), as the model sees it
        votes: (I, J, D)
        weights: (I,), of the children: EM routing weighs them with their activations, the others all alike
        couplings: (S, I, J), of each of S iterations
        poses: (S, J, D), of the classes, as the trace has them
        activations: (S, J), of the classes, after the norm of the layer where it has one
        objectives: (S,), what the algorithm descends
    """

    inputs: np.ndarray
    votes: np.ndarray
    weights: np.ndarray
    couplings: np.ndarray
    poses: np.ndarray
    activations: np.ndarray
    objectives: np.ndarray
    labels: Sequence[str]
    routing: str
    grid: tuple[int, ...]

    @property
    def image_grid(self) -> tuple[int, int, int]:
        """(height, width, types) of the children, where they lie on a grid of an image."""
        if len(self.grid) != 3:
            raise ValueError(
                "places are told where the children of the classes lie on a grid (height, width, types) of an image, "
                f"got {self.grid}"
            )
        return self.grid

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

        A learned bias may make couplings of self-attention negative; such children are left out.

        Shapes:
            (S, J, D)
        """
        masses = np.maximum(self.masses, 0)
        total = masses.sum(1)[..., None]
        return np.einsum("sij,ijd->sjd", masses, self.votes) / np.maximum(total, 1e-30)

    def distances(self) -> np.ndarray:
        """How far each vote lies from the centre of its class: (S, I, J)."""
        return np.linalg.norm(self.votes[None] - self.centres()[:, None], axis=-1)


@torch.inference_mode()
def class_routing(routes: Routes, routing: Routing | None = None) -> ClassRouting:
    """How the last layer of a model routed one input to the classes.

    Args:
        routes: one input on its way, with traces; of a text model with several branches the last one is told.
        routing: takes the place of the one that the layer was trained with, on the same votes; needs no trace.

    Example:
        >>> from torchcaps.inspection import find_routes
        >>> from torchcaps.models import create_model
        >>> model = create_model("capsnet-small", image_shape=(1, 28, 28), num_classes=10)
        >>> class_routing(find_routes(model, torch.rand(1, 28, 28), return_trace=True)).couplings.shape
        (3, 144, 10)
    """
    layer, result = routes.class_layer, list(routes.results.values())[-1]
    children, votes = result.children, result.votes
    assert children is not None
    assert votes is not None
    if routing is not None:
        result = routing(votes, return_trace=True)
    else:
        routing = layer.routing
    couplings, poses, activations, objectives = traced(result)
    if layer.norm is not None:
        activations = normed(layer.norm, result)
    activations_I = children.activations[0].flatten().cpu().numpy()
    labels = routes.model.labels
    return ClassRouting(
        routes.inputs[0].cpu().numpy(),
        votes.materialise()[0].cpu().numpy(),
        activations_I if type(routing).weighs_children else np.ones_like(activations_I),
        *(couplings, poses, activations, objectives),
        labels=(*labels, *["noise"] * (votes.num_parents - len(labels))),
        routing=routing_name(routing),
        grid=tuple(children.activations.shape[1:]),
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
        raise ValueError(
            f"couplings of classes must have shape (B, I, J), got {tuple(coupling.shape)}; "
            "the last routed layer must be one where every child votes for every class"
        )
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


def remaining_descent(objective: Sequence[float]) -> np.ndarray | None:
    """What is left of the way from the first value to the last: 1 at the start, 0 at the end; None if there is none.

    Example:
        >>> remaining_descent([5.0, 2.0, 1.0]).tolist()
        [1.0, 0.25, 0.0]
    """
    values = np.asarray(objective, float)
    way = values[0] - values[-1]
    return None if abs(way) < 1e-12 else (values - values[-1]) / way
