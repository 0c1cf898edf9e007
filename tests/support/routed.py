"""Images on their way into classes: made up, and of a model."""

import numpy as np
import torch

from torchcaps.inspection import ClassRouting, class_routing, find_routes
from torchcaps.inspection.routed import traced
from torchcaps.models import Model
from torchcaps.nn import Routing
from torchcaps.routing import dynamic_routing


def agreeing_votes() -> ClassRouting:
    """A grid of 3 x 3 places and 2 types that votes for four classes; the votes for the third agree."""
    generator = np.random.default_rng(0)
    votes = generator.normal(size=(1, 18, 4, 5)).astype(np.float32)
    votes[:, :, 2] = 0.2 * votes[:, :, 2] + 1.0
    steps = traced(dynamic_routing(torch.from_numpy(votes), num_iterations=3, return_trace=True))
    image = generator.random((1, 9, 9)).astype(np.float32)
    return ClassRouting(image, votes[0], np.ones(18), *steps, ("a", "b", "c", "d"), "dynamic", (3, 3, 2))


def routed_image(model: Model, image: torch.Tensor, routing: Routing | None = None) -> ClassRouting:
    """One image (C, H, W) on its way into the classes of a model."""
    return class_routing(find_routes(model, image, return_trace=True), routing)
