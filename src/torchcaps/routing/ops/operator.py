"""A family of routings as torch sees it: three operators, their fake kernels and their gradients.

Inputs of a family are a named tuple whose fields are tensors, numbers or such tuples again (votes, options). Torch
takes them one by one; their schema follows from the annotations, so that no list of parameters is written twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchcaps.routing.ops.bodies import find_body

TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    bool: "bool",
    int: "SymInt",
    float: "float",
    Sequence[float]: "float[]",
}


def fields(kind: type[tuple]) -> Iterator[tuple[str, str]]:
    """Names and schema types of a named tuple, those of the tuples in it among them.

    Example:
        >>> from typing import NamedTuple
        >>> class Options(NamedTuple):
        ...     detach: bool
        >>> class Inputs(NamedTuple):
        ...     partial: Tensor | None
        ...     options: Options
        >>> list(fields(Inputs))
        [('partial', 'Tensor?'), ('detach', 'bool')]
    """
    for name, annotation in kind.__annotations__.items():
        if annotation in TYPES:
            yield name, TYPES[annotation]
        else:
            yield from fields(annotation)


def flatten(inputs: tuple) -> tuple:
    """The values of a named tuple one by one, in the order of `fields`."""
    values: list[Any] = []
    for value in inputs:
        values.extend(flatten(value) if hasattr(value, "_fields") else [value])
    return tuple(values)


def rebuild(kind: type[tuple], values: Iterator[Any]) -> Any:
    """The named tuple of values that come one by one."""
    annotations = kind.__annotations__.values()
    return kind(*[next(values) if annotation in TYPES else rebuild(annotation, values) for annotation in annotations])


Shapes = Mapping[str, Callable[[Any], tuple[int, ...]]]


class Operator:
    """Operators `forward`, `backward` and `couplings` of one family; bodies fill what they return.

    Args:
        family: its name.
        kind: of its inputs, with a field `votes`.
        differentiable: names of the inputs that have gradients.
        outputs: what it finds, each with its shape; all of it may be differentiated.
        told: what it tells of one weighted sum, each with its shape: couplings first.
    """

    def __init__(
        self,
        family: str,
        kind: type[tuple],
        *,
        differentiable: Sequence[str],
        outputs: Shapes,
        told: Shapes,
    ) -> None:
        self.family, self.kind, self.outputs, self.told = family, kind, outputs, told
        names = [name for name, _ in fields(kind)]
        self.places = {name: names.index(name) for name in differentiable}
        given = ", ".join(f"{schema} {name}" for name, schema in fields(kind))
        arriving = ", ".join(f"Tensor? grad_{name}" for name in outputs)
        self.forward = _define(
            f"{family}_routing({given}, bool keep_state) -> {_tensors(len(outputs) + 1)}", self._forward
        )
        self.backward = _define(
            f"{family}_routing_backward({arriving}, Tensor state, bool[] wanted, {given})"
            f" -> {_tensors(len(self.places))}",
            self._backward,
        )
        self.couplings = _define(
            f"{family}_couplings(Tensor state, int iteration, {given}) -> {_tensors(len(told))}", self._couplings
        )
        self.forward.register_autograd(self._differentiate, setup_context=self._save)
        self.backward.register_autograd(_refuse_double_backward)

    def body(self, inputs: Any) -> Any:
        """Who does the work."""
        return find_body(self.family, inputs.votes.poses.device.type)

    def _forward(self, fake: bool, *values: Any) -> tuple[Tensor, ...]:
        """The outputs of the family, and the state."""
        *given, keep_state = values
        inputs = rebuild(self.kind, iter(given))
        outputs, state = _rooms(inputs, self.outputs), self.body(inputs).room(inputs, keep_state)
        if not fake:
            self.body(inputs).forward(inputs, outputs, state)
        return *outputs, state

    def _backward(self, fake: bool, *values: Any) -> tuple[Tensor, ...]:
        """Gradients of the differentiable inputs; those that are not wanted have no entries."""
        (*arriving, state, wanted), given = values[: len(self.outputs) + 2], values[len(self.outputs) + 2 :]
        inputs = rebuild(self.kind, iter(given))
        poses, asked = inputs.votes.poses, dict(zip(self.places, wanted, strict=True))
        gradients = {name: poses.new_empty(given[self.places[name]].shape if asked[name] else 0) for name in asked}
        if not fake:
            filled = {name: gradient for name, gradient in gradients.items() if asked[name]}
            self.body(inputs).backward(inputs, state, tuple(arriving), filled)
        return tuple(gradients.values())

    def _couplings(self, fake: bool, state: Tensor, iteration: int, *given: Any) -> Tensor | tuple[Tensor, ...]:
        """What is told of a weighted sum."""
        inputs = rebuild(self.kind, iter(given))
        told = _rooms(inputs, self.told)
        if not fake:
            self.body(inputs).couplings(inputs, state, iteration, told)
        return told if len(told) > 1 else told[0]

    def _save(self, ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        given, state = inputs[:-1], output[-1]
        ctx.mark_non_differentiable(state)
        ctx.set_materialize_grads(False)  # or autograd would fill a tensor as large as the state with zeros
        ctx.tensors = [isinstance(value, Tensor) for value in given]
        ctx.others = [None if isinstance(value, Tensor) else value for value in given]
        ctx.save_for_backward(state, *(value for value in given if isinstance(value, Tensor)))

    def _differentiate(self, ctx: Any, *arriving: Tensor | None) -> tuple[Tensor | None, ...]:
        state, *tensors = ctx.saved_tensors
        if state.numel() == 0:
            raise RuntimeError(
                f"{self.family}_routing was called with keep_state=False, which leaves nothing to differentiate"
            )
        rest = iter(tensors)
        given = [next(rest) if is_tensor else other for is_tensor, other in zip(ctx.tensors, ctx.others, strict=True)]
        wanted = [ctx.needs_input_grad[place] for place in self.places.values()]
        found = self.backward(*arriving[:-1], state, wanted, *given)
        gradients: list[Tensor | None] = [None] * (len(given) + 1)
        for place, gradient, asked in zip(self.places.values(), found, wanted, strict=True):
            gradients[place] = gradient if asked else None
        return tuple(gradients)


def _define(signature: str, compute: Callable) -> Any:
    """An operator and its fake kernel; `compute(fake, ...)` is both."""
    name, parenthesis, rest = signature.partition("(")
    operator = torch.library.custom_op(
        f"torchcaps::{name}", partial(compute, False), mutates_args=(), schema=parenthesis + rest
    )
    operator.register_fake(partial(compute, True))
    return operator


def _rooms(inputs: Any, shapes: Shapes) -> tuple[Tensor, ...]:
    return tuple(inputs.votes.poses.new_empty(shape(inputs)) for shape in shapes.values())


def _tensors(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _refuse_double_backward(ctx: Any, *_: Any) -> tuple:
    raise RuntimeError(
        "the fused routing kernels are differentiable once; for gradients of gradients use backend='reference'"
    )
