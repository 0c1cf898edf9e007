"""A routing problem solved for a few examples at a time: nothing is kept but the result.

The backward pass solves every chunk again, this time with a graph, takes its gradients and drops it. Memory is
therefore that of one chunk. A general checkpoint would do the same, but keeps a graph and small tensors for every
chunk, between which freed memory cannot be given back.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from torchcaps.capsules import Capsules
from torchcaps.precision import without_autocast
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep


def solve_in_chunks(problem: Problem, chunk_size: int) -> RoutingResult:
    """The reference for `chunk_size` examples at a time; examples are independent, so this is exact."""
    tensors, rebuild = split(problem)
    poses, activations, logits, coupling, *steps = _InChunks.apply(rebuild, chunk_size, *tensors)
    width = len(TraceStep._fields)
    trace = tuple(TraceStep(*steps[n : n + width]) for n in range(0, len(steps), width))
    trace = trace if problem.return_trace else None
    return RoutingResult(Capsules(poses, activations), coupling, trace, logits=logits)


class _InChunks(torch.autograd.Function):
    """(poses, activations, logits or None, coupling, *trace) of the problem that `rebuild` makes of the tensors."""

    @staticmethod
    def forward(
        ctx: Any, rebuild: Callable[..., Problem], chunk_size: int, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        problem = rebuild(tensors)
        batch_size = problem.votes.example.shape[0]
        ctx.rebuild, ctx.chunks = rebuild, _chunks(batch_size, chunk_size)
        ctx.save_for_backward(*tensors)
        outputs: list[Tensor | None] = []
        for start, length in ctx.chunks:
            result = problem.algorithm.reference(problem.narrow(start, length))
            parts = [*_differentiable(result), result.coupling]
            parts += [value for step in result.trace or () for value in step]
            outputs = outputs or [
                None if part is None else part.new_empty(batch_size, *part.shape[1:]) for part in parts
            ]
            for output, part in zip(outputs, parts, strict=True):
                if output is not None and part is not None:
                    output[start : start + length] = part
        ctx.mark_non_differentiable(*outputs[3:])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
        problem = ctx.rebuild(tensors)
        device_type = problem.votes.example.device.type
        totals: list[Tensor | None] = [None] * len(tensors)
        for start, length in ctx.chunks:
            parts, rebuild = split(problem.narrow(start, length))
            leaves = [part.detach().requires_grad_(need) for part, need in zip(parts, needed, strict=True)]
            with without_autocast(device_type):
                found = _gradients(
                    rebuild, leaves, [None if g is None else g[start : start + length] for g in gradients]
                )
            for n, gradient in zip([n for n, need in enumerate(needed) if need], found, strict=True):
                if gradient is None:
                    continue
                if (total := totals[n]) is None:
                    total = totals[n] = torch.zeros_like(tensors[n])
                belongs_to_all = parts[n] is tensors[n]  # narrowing left it as it was
                (total if belongs_to_all else total[start : start + length]).add_(gradient)
        return None, None, *totals


def _gradients(
    rebuild: Callable[..., Problem], leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Of the leaves that need one, from those of (poses, activations, logits) of a problem that is solved again."""
    with torch.enable_grad():
        problem = rebuild(leaves)
        values = _differentiable(problem.algorithm.reference(problem))
    outputs = [
        (value, gradient)
        for value, gradient in zip(values, gradients, strict=False)
        if value is not None and gradient is not None and value.requires_grad
    ]
    return torch.autograd.grad(
        [value for value, _ in outputs],
        [leaf for leaf in leaves if leaf.requires_grad],
        [gradient for _, gradient in outputs],
        allow_unused=True,
    )


def _differentiable(result: RoutingResult) -> tuple[Tensor | None, ...]:
    return (*result.capsules, result.own_logits)


def split(problem: Problem) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Problem]]:
    """The tensors of a problem, and how to make the problem of others like them."""
    leaves, structure = tree_flatten(
        (
            vars(problem.votes),
            vars(problem.options) if problem.options is not None else {},
            {"initial_logits": problem.initial_logits, "partial": problem.partial},
        )
    )
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[n] for n in places]

    def rebuild(tensors: Sequence[Tensor | None]) -> Problem:
        for n, tensor in zip(places, tensors, strict=True):
            leaves[n] = tensor
        votes, options, rest = tree_unflatten(leaves, structure)
        for n in places:  # only the new problem keeps the tensors alive
            leaves[n] = None
        return replace(hollow, votes=_with(hollow.votes, votes), options=_with(hollow.options, options), **rest)

    hollow = problem
    hollow = rebuild([None] * len(tensors))
    return tensors, rebuild


def _with(object: Any, attributes: dict[str, Any]) -> Any:
    twin = copy.copy(object)
    if attributes:
        vars(twin).update(attributes)
    return twin


def _chunks(batch_size: int, chunk_size: int) -> list[tuple[int, int]]:
    return [(start, min(chunk_size, batch_size - start)) for start in range(0, batch_size, chunk_size)]
