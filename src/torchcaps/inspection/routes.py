"""One input on its way through all capsule layers of a model: what every explanation of an answer stands on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcaps.models import Model, ModelOutput
from torchcaps.nn import CapsuleLayer
from torchcaps.routing import RoutingResult


@dataclass(frozen=True, kw_only=True)
class Routes:
    """How one input went through a capsule model.

    Attributes:
        model: that routed it.
        inputs: (1, ...), as the model takes it.
        results: of the routed layers, from the first to the classes, by the names that `get_submodule` takes.
        output: what the model says.
    """

    model: Model
    inputs: Tensor
    results: dict[str, RoutingResult]
    output: ModelOutput

    @property
    def best(self) -> int:
        """The class with the highest score."""
        return int(self.output.scores[0].argmax())

    @property
    def class_layer(self) -> CapsuleLayer:
        """The layer of the classes: the last one."""
        return self.layer(list(self.results)[-1])

    def layer(self, name: str) -> CapsuleLayer:
        """The capsule layer with the name of a result."""
        try:
            layer = self.model.get_submodule(name)
        except AttributeError:
            layer = None
        if not isinstance(layer, CapsuleLayer):
            raise ValueError(
                f"route of {self.model.name} must name its results as get_submodule names capsule layers, got {name!r}"
            )
        return layer


@torch.inference_mode()
def find_routes(model: Model, inputs: Tensor, *, return_trace: bool = False) -> Routes:
    """Route one input through a model, once.

    Args:
        model: that implements `route`; it is put into evaluation mode for the time.
        inputs: one image (C, H, W) after preprocessing, or the tokens (T,) of one text.
        return_trace: keep every iteration of every layer.

    Example:
        >>> from torchcaps.models import create_model
        >>> model = create_model("matrix-capsnet-small", image_shape=(1, 32, 32), num_classes=5)
        >>> list(find_routes(model, torch.rand(1, 32, 32)).results)
        ['conv1', 'conv2', 'class_capsules']
    """
    with evaluating(model):
        batch = inputs[None].to(next(model.parameters()).device)
        results = model.route(batch, return_trace=return_trace)
        for name, result in results.items():
            if result.children is None or result.votes is None:
                raise ValueError(
                    f"route of {model.name} must give what the route method of a capsule layer gives; "
                    f"the result of {name!r} does not know its votes"
                )
        return Routes(model=model, inputs=batch, results=results, output=model.conclude(results))


def capsule_layers(model: nn.Module) -> list[CapsuleLayer]:
    """The capsule layers of a model, in the order in which they were registered."""
    return [layer for layer in model.modules() if isinstance(layer, CapsuleLayer)]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode within the block, and as it was after it."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
