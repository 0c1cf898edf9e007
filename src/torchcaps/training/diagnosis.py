"""Where a number stopped being finite."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.routing import RoutingResult


class Diverged(FloatingPointError):
    """A loss, a gradient or a weight is not finite; the message names the layer."""


@contextmanager
def watch(model: nn.Module) -> Iterator[list[str]]:
    """Names of the layers that give numbers that are not finite, the first one first; filled while the model runs."""
    broken: list[str] = []

    def notice(name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not all(is_finite(tensor) for tensor in tensors_of(output)):
                broken.append(name)

        return hook

    handles = [module.register_forward_hook(notice(name)) for name, module in model.named_modules() if name]
    try:
        yield broken
    finally:
        for handle in handles:
            handle.remove()


def tensors_of(output: Any) -> Iterator[Tensor]:
    """The tensors in what a layer gives."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, RoutingResult):
        yield from output.capsules
        if output.own_logits is not None:
            yield output.own_logits
    elif isinstance(output, tuple):
        for part in output:
            yield from tensors_of(part)


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are; whole numbers always are."""
    return bool(torch.isfinite(tensor).all())


def first_broken(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that is not finite."""
    return next((name for name, tensor in tensors if not is_finite(tensor)), None)


def worst_gradient(model: nn.Module) -> str:
    """What is wrong where all layers give numbers: the broken gradient nearest the loss, or the largest one."""
    gradients = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    name = first_broken(reversed(gradients))
    if name is not None:
        return f"the gradient of {name} is not finite"
    name, gradient = max(gradients, key=lambda pair: float(pair[1].abs().max()))
    return f"the gradient of {name} is too large ({float(gradient.abs().max()):.1e})"
