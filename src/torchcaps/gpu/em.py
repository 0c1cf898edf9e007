"""The EM family on a GPU."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from torchcaps.gpu.arguments import Form, Partition
from torchcaps.gpu.availability import on_device, why_not_gpu
from torchcaps.gpu.launch import launch
from torchcaps.gpu.state import KINDS, Kind, empty_state, kinds_of, pair, split_state
from torchcaps.gpu.verified import why_not_verified
from torchcaps.routing.ops.em import EmInputs, EmKernelOptions, EmMapping
from torchcaps.routing.problem import Problem
from torchcaps.routing.steps import LEAST_MASS

MDL, MIXING, ENTROPY = EmMapping.MDL, EmMapping.MIXING, EmMapping.ENTROPY


class TritonEm:
    """Its state, of every iteration: mass, height and logit (T, M, J), mean and slope (T, M, J, D), and log-partitions.

    Height and slope are the Gaussian as its E-step reads it, see `torchcaps.gpu.kernels.em_steps`.
    """

    backend = "triton"
    why_not_unasked = staticmethod(why_not_verified)

    def why_not(self, problem: Problem, options: EmKernelOptions) -> str | None:
        if options.mapping not in (MDL, MIXING, ENTROPY):
            return f"{problem.algorithm.name} routing has no kernel for GPUs yet"
        return why_not_gpu(problem)

    def room(self, inputs: EmInputs, keep_state: bool) -> Tensor:
        return empty_state(inputs.votes.poses, _shapes(inputs))  # the kernels work in it: it is always kept

    def forward(self, inputs: EmInputs, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        with _on_device(inputs):
            _Solution(inputs).forward(outputs, state)

    def backward(
        self, inputs: EmInputs, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]
    ) -> None:
        with _on_device(inputs):
            _Solution(inputs).backward(state, arriving, gradients)

    def couplings(self, inputs: EmInputs, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        with _on_device(inputs):
            _Solution(inputs).couplings(state, iteration, outputs)

    def parents(self, inputs: EmInputs, state: Tensor) -> tuple[Tensor, Tensor]:
        _, _, logit, mean, *_ = split_state(state, _shapes(inputs))
        return mean.movedim(0, 1), logit.movedim(0, 1)


def _on_device(inputs: EmInputs) -> AbstractContextManager:
    return on_device(inputs.votes.poses)


def _kinds(inputs: EmInputs) -> list[Kind]:
    options = inputs.options
    return kinds_of(options.competition, len(options.sharpness), has_logits=inputs.initial_logits is not None)


def _shapes(inputs: EmInputs) -> list[tuple[int, ...]]:
    """Of the parts of a state."""
    votes = inputs.votes
    parents = (len(inputs.options.sharpness), *votes.parent_shape)
    return [*[parents] * 3, *[(*parents, votes.vote_size)] * 2, *(kind.shape(votes) for kind in _kinds(inputs))]


class _Solution:
    """One call: M-steps and E-steps over the passes of a layer."""

    def __init__(self, inputs: EmInputs) -> None:
        from torchcaps.gpu.layer import Layer

        self.options = inputs.options
        self.layer = Layer(inputs.votes)
        given = (inputs.beta_a, inputs.beta_u, inputs.initial_logits)
        self.beta_a, self.beta_u, self.logits = (None if value is None else value.contiguous() for value in given)
        self.num_iterations = len(self.options.sharpness)
        self.kinds, self.shapes = _kinds(inputs), _shapes(inputs)

    def forward(self, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        from torchcaps.gpu.kernels.em_steps import finish_m_step

        layer, options = self.layer, self.options
        mass, height, logit, mean, slope, *partitions = split_state(state, self.shapes)
        mass_scale = self._mass_scale()
        for t in range(self.num_iterations):
            form = self._form(mean, slope, height, t)
            partition = layer.partition(form, self.kinds[t], partitions[t])
            sums = layer.moments(form, partition, mass=True, spread=True)
            launch(
                finish_m_step, layer.row_grid,
                *sums, mean[t - 1] if t > 0 and options.damping else None, self.beta_a, self.beta_u, mass_scale,
                mass[t], mean[t], slope[t], height[t], logit[t], layer.num_rows, layer.num_chunks, self._parents(),
                *self._numbers(t), ACTIVATION=options.mapping, **self._row_options(),
            )  # fmt: skip
            if options.mapping == MIXING:
                total = mass[t].sum((1, 2), keepdim=True)
                logit[t].copy_(mass[t].clamp_min(LEAST_MASS).log() - total.clamp_min(LEAST_MASS).log())
                height[t] += options.inverse_temperatures[t] * logit[t]
        out_poses, out_activations, out_logits = outputs
        out_poses.copy_(mean[-1])
        out_logits.copy_(logit[-1])
        out_activations.copy_(logit[-1].exp() if options.mapping == MIXING else logit[-1].sigmoid())

    def backward(self, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]) -> None:
        from torchcaps.gpu.kernels.em_steps import finish_gradient
        from torchcaps.gpu.layer import VoteGradients, as_partition

        layer, options, last = self.layer, self.options, self.num_iterations - 1
        mass, height, logit, mean, slope, *partitions = split_state(state, self.shapes)
        mass_scale = self._mass_scale()
        start = last if options.detach else 0
        votes = VoteGradients(layer, gradients, last + 1 - start)
        to_betas = layer.new(2, *mass[start:].shape)
        if options.mapping == MIXING:
            to_betas.zero_()
        to_activations = layer.new(layer.batch_size, layer.num_children).zero_()
        sums: tuple[Tensor | None, ...] = (None, None, None)
        carried = None
        arrived = [None if gradient is None else gradient.contiguous() for gradient in arriving]
        for t in reversed(range(start, last + 1)):
            line, curve, constant = (torch.empty_like(value[t]) for value in (mean, mean, mass))
            to_old = torch.empty_like(mean[t]) if options.damping else None
            shared = self._shared(mass[t], logit[t], sums[0], arrived[1], t)
            launch(
                finish_gradient, layer.row_grid,
                *sums, *(arrived if t == last else (None, None, None)), carried, shared, mass[t], mean[t], slope[t],
                logit[t], mean[t - 1] if t > 0 and options.damping else None, self.beta_u, mass_scale, line, curve,
                constant, *to_betas[:, t - start], to_old, layer.num_rows, layer.num_chunks, self._parents(),
                *self._numbers(t), ACTIVATION=options.mapping, LAST=t == last, **self._row_options(),
            )  # fmt: skip
            carried = to_old
            form, kind = self._form(mean, slope, height, t), self.kinds[t]
            response = Form(centre=mean[t], line=line, slope=curve, height=constant)
            partition = as_partition(partitions[t], kind)
            flows = t > start or (t == 0 and "initial_logits" in gradients)
            means: Partition | None = None
            if flows or "activations" in gradients:
                means, per_child = layer.responses(form, response, partition, kind)
                to_activations += per_child
            sums = votes.add(form, response, partition, means if flows else None, sums=t > start, squares=t > start)
        votes.finish()
        if "activations" in gradients:
            gradients["activations"].copy_(layer.of_voting(to_activations))
        for name, to_beta in zip(("beta_a", "beta_u"), to_betas, strict=True):
            if name in gradients:
                gradients[name].copy_(to_beta.flatten(0, -2).sum(0))

    def couplings(self, state: Tensor, iteration: int, outputs: tuple[Tensor, ...]) -> None:
        (out, log_likelihood), layer = outputs, self.layer
        _, height, _, mean, slope, *_ = split_state(state, self.shapes)
        kind = self.kinds[0] if iteration == 0 else KINDS[self.options.competition]
        form = self._form(mean, slope, height, iteration)
        values = layer.new(*kind.shape(layer.votes))
        layer.couplings(form, layer.partition(form, kind, values), out, amended=False)
        if iteration == 0:  # no Gaussians yet
            log_likelihood.zero_()
            return
        weight = layer.child_weights()
        if not kind.by_child and layer.votes.child is not None:
            weight = weight[:, layer.votes.child.flatten()]
        total = (values * weight.unsqueeze(-1)).flatten(1).sum(1)
        log_likelihood.copy_(total / self.options.inverse_temperatures[iteration - 1])

    def _form(self, mean: Tensor, slope: Tensor, height: Tensor, t: int) -> Form:
        """Of the logits that the couplings of M-step t come from."""
        if t == 0:
            return Form(given=self.logits)
        return Form(centre=mean[t - 1], slope=slope[t - 1], height=height[t - 1])

    def _numbers(self, t: int) -> tuple[tuple[float, float], ...]:
        options = self.options
        numbers = (options.sharpness[t], options.inverse_temperatures[t], options.eps_var, options.damping)
        return tuple(map(pair, numbers))

    def _parents(self) -> int:
        """Of one example."""
        return self.layer.num_windows * self.layer.num_parents

    def _row_options(self) -> dict:
        return self.layer.row_options | {"J": self.layer.num_parents}

    def _mass_scale(self) -> Tensor | None:
        """Mean mass of a parent at the start, (B,): couplings of each softmax add up to 1."""
        if not self.options.scale_by_mass or self.options.mapping != MDL:
            return None
        layer, kind = self.layer, self.kinds[0]
        total = layer.num_softmaxes(kind.by_child) * (layer.num_parents if kind.by_type else 1)
        window_mask = layer.votes.window_mask
        if window_mask is None:
            return (total / self._parents()).clamp_min(LEAST_MASS)
        return (total / (window_mask.sum(1) * layer.num_parents).clamp_min(1)).clamp_min(LEAST_MASS)

    def _shared(
        self, mass: Tensor, logit: Tensor, sums: Tensor | None, grad_activations: Tensor | None, t: int
    ) -> Tensor | None:
        """What every mass gets from the total that all "mixing" activations share, (B,)."""
        if self.options.mapping != MIXING:
            return None
        if sums is not None:
            to_log = self.options.inverse_temperatures[t] * sums.sum(0).view_as(mass)
        elif grad_activations is not None:
            to_log = logit.exp() * grad_activations
        else:
            to_log = torch.zeros_like(mass)
        total = mass.sum((1, 2))
        return torch.where(
            total >= LEAST_MASS, to_log.sum((1, 2)) / total.clamp_min(LEAST_MASS), torch.zeros_like(total)
        )
