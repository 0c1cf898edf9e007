"""The softmax family on a GPU."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from torchcaps.gpu.arguments import Form, Partition
from torchcaps.gpu.availability import on_device, why_not_gpu
from torchcaps.gpu.launch import launch
from torchcaps.gpu.state import Kind, empty_state, kinds_of, pair, split_state
from torchcaps.gpu.verified import why_not_verified
from torchcaps.routing.ops.softmax import SoftmaxAlgorithm, SoftmaxInputs, SoftmaxOptions
from torchcaps.routing.problem import Problem

DYNAMIC, MAX_MIN = SoftmaxAlgorithm.DYNAMIC, SoftmaxAlgorithm.MAX_MIN
EUCLIDEAN, ENTROPY = SoftmaxAlgorithm.KMEANS_EUCLIDEAN, SoftmaxAlgorithm.ENTROPY


class TritonSoftmax:
    """Its state: sums (r, M, J, D) and their masses (r, M, J) for the Euclidean metric, queries (r - 1, M, J, D), and
    the log-partitions (or extremes) of every iteration."""

    backend = "triton"
    why_not_unasked = staticmethod(why_not_verified)

    def why_not(self, problem: Problem, options: SoftmaxOptions) -> str | None:
        if options.algorithm in (SoftmaxAlgorithm.ATTENTION, SoftmaxAlgorithm.LINEAR):
            return f"it has no kernel for {problem.algorithm.name} routing"
        return why_not_gpu(problem)

    def room(self, inputs: SoftmaxInputs, keep_state: bool) -> Tensor:
        return empty_state(inputs.votes.poses, _shapes(inputs))  # the kernels work in it: it is always kept

    def forward(self, inputs: SoftmaxInputs, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        with _on_device(inputs):
            _Solution(inputs).forward(outputs[0], state)

    def backward(
        self, inputs: SoftmaxInputs, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]
    ) -> None:
        with _on_device(inputs):
            _Solution(inputs).backward(state, arriving[0], gradients)

    def couplings(self, inputs: SoftmaxInputs, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        with _on_device(inputs):
            _Solution(inputs).couplings(state, iteration, outputs[0])


def _on_device(inputs: SoftmaxInputs) -> AbstractContextManager:
    return on_device(inputs.votes.poses)


def _kinds(inputs: SoftmaxInputs) -> list[Kind]:
    options = inputs.options
    return kinds_of(options.competition, options.num_sums, has_logits=inputs.initial_logits is not None)


def _shapes(inputs: SoftmaxInputs) -> list[tuple[int, ...]]:
    """Of the parts of a state."""
    votes, options = inputs.votes, inputs.options
    vectors, extremes = (*votes.parent_shape, votes.vote_size), (4,) if options.algorithm == MAX_MIN else ()
    return [
        (options.num_sums, *vectors),
        (options.num_sums if options.algorithm == EUCLIDEAN else 0, *votes.parent_shape),
        (options.num_sums - 1, *vectors),
        *((*extremes, *kind.shape(votes)) for kind in _kinds(inputs)),
    ]


class _Solution:
    """One call: iterations over the passes of a layer."""

    def __init__(self, inputs: SoftmaxInputs) -> None:
        from torchcaps.gpu.layer import Layer

        self.options = options = inputs.options
        self.layer = Layer(inputs.votes, partial=inputs.partial, leaky=options.leaky)
        self.logits = None if inputs.initial_logits is None else inputs.initial_logits.contiguous()
        self.kinds, self.shapes = _kinds(inputs), _shapes(inputs)
        # max-min routing is dynamic routing with other couplings
        self.steps = DYNAMIC if options.algorithm == MAX_MIN else options.algorithm
        if options.algorithm == ENTROPY:
            self.scales = [1 / alpha for alpha in options.alphas]
        else:
            self.scales = list(options.inverse_temperatures) or [1.0] * options.num_sums
        self.squash_k = pair(options.squash_k)

    def forward(self, out: Tensor, state: Tensor) -> None:
        from torchcaps.gpu.kernels.softmax_steps import finish_sums
        from torchcaps.gpu.layer import deliver

        layer, algorithm, last = self.layer, self.steps, self.options.num_sums - 1
        sums, masses, queries, *partitions = split_state(state, self.shapes)
        room = layer.room_for(out)
        for t in range(last + 1):
            form = self._form(queries, t)
            find = layer.extremes if self.options.algorithm == MAX_MIN else layer.partition
            partition = find(form, self.kinds[t], partitions[t])
            found = layer.moments(form, partition, mass=algorithm == EUCLIDEAN, spread=False)
            launch(
                finish_sums, layer.row_grid,
                found.first, found.mass, queries[t - 1] if t > 0 else None, sums[t], masses[t] if len(masses) else None,
                queries[t] if t < last else None, room if t == last else None, layer.num_rows, layer.num_chunks,
                self.squash_k, pair(self.scales[t]), ALGORITHM=algorithm, **layer.row_options,
            )  # fmt: skip
        if algorithm == ENTROPY:  # all parents of a window share the length of the longest
            longest = torch.linalg.vector_norm(sums[last], dim=-1).amax(-1)[..., None, None]
            out.copy_((sums[last] / (1 + longest)).view_as(out))
        else:
            deliver(room, out)

    def backward(self, state: Tensor, grad_out: Tensor | None, gradients: dict[str, Tensor]) -> None:
        from torchcaps.gpu.kernels.softmax_steps import finish_gradient
        from torchcaps.gpu.layer import as_partition
        from torchcaps.gpu.vote_gradients import VoteGradients

        layer, options = self.layer, self.options
        algorithm, last = self.steps, options.num_sums - 1
        sums, masses, queries, *partitions = split_state(state, self.shapes)
        start = last if options.detach else 0
        if grad_out is None:  # a caller may differentiate nothing
            grad_out = torch.zeros_like(sums[last])
        votes = VoteGradients(layer, gradients, last + 1 - start)
        to_sums, to_mass, later, sums_in = layer.new(*sums.shape[1:]), None, None, None
        to_activations = layer.new(layer.batch_size, layer.num_children).zero_()
        if algorithm == EUCLIDEAN:
            to_mass = layer.new(*masses.shape[1:])
        for t in reversed(range(start, last + 1)):
            to_sums, to_pose = layer.new(*to_sums.shape), None
            if algorithm == ENTROPY and t == last:
                to_sums.copy_(_longest_gradient(sums[t], grad_out.reshape(sums[t].shape).to(sums.dtype)))
            else:
                to_pose = layer.new(*to_sums.shape) if algorithm == DYNAMIC else None
                launch(
                    finish_gradient, layer.row_grid,
                    sums_in, grad_out.contiguous() if t == last else None, sums[t], masses[t] if len(masses) else None,
                    later, to_pose, to_sums, to_mass, layer.num_rows, layer.num_chunks, self.squash_k,
                    pair(self.scales[t]), ALGORITHM=algorithm, **layer.row_options,
                )  # fmt: skip
                later = to_pose if t < last else None
            form, kind = self._form(queries, t), self.kinds[t]
            response = Form(line=to_sums, height=to_mass)
            partition = as_partition(partitions[t], kind)
            flows = not options.detach and (t > 0 or "initial_logits" in gradients)
            means: Partition | None = None
            if flows or ("activations" in gradients and not options.detach):
                means, per_child = layer.responses(form, response, partition, kind)
                to_activations += per_child
            sums_in = votes.add(form, response, partition, means if flows else None, sums=flows and t > 0).first
        votes.finish()
        if "activations" in gradients:
            gradients["activations"].copy_(layer.of_voting(to_activations))

    def couplings(self, state: Tensor, iteration: int, out: Tensor) -> None:
        from torchcaps.gpu.layer import as_partition

        _, _, queries, *partitions = split_state(state, self.shapes)
        partition = as_partition(partitions[iteration], self.kinds[iteration])
        self.layer.couplings(self._form(queries, iteration), partition, out, amended=True)

    def _form(self, queries: Tensor, t: int) -> Form:
        """Of the logits of weighted sum t."""
        if t == 0:
            return Form(given=self.logits)
        if self.options.algorithm == EUCLIDEAN:
            return Form(centre=queries[t - 1], slope=torch.full_like(queries[t - 1], -self.scales[t - 1]))
        adds_up = self.steps == DYNAMIC
        return Form(line=queries[t - 1], given=self.logits if adds_up else None)


def _longest_gradient(sums: Tensor, gradient: Tensor) -> Tensor:
    """Of sums / (1 + length of the longest): parents of that length share its part, (M, J, D)."""
    lengths = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    longest = lengths.amax(-2, keepdim=True)
    scale = 1 / (1 + longest)
    is_longest = ((lengths == longest) & (longest > 0)).to(sums.dtype)
    ties = is_longest.sum(-2, keepdim=True).clamp_min(1)
    pull = (sums * gradient).sum((-2, -1), keepdim=True) * scale.square() / ties
    direction = sums / torch.where(longest > 0, longest, torch.ones_like(longest))
    return gradient * scale - is_longest * pull * direction
