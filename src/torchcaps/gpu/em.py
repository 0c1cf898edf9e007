"""The EM family on a GPU."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from torchcaps.gpu.arguments import Arriving, Form, Gaussians, Partition, Sums
from torchcaps.gpu.availability import on_device, why_not_gpu
from torchcaps.gpu.launch import launch
from torchcaps.gpu.state import KINDS, Kind, empty_state, kinds_of, pair, split_state
from torchcaps.gpu.verified import why_not_verified
from torchcaps.routing.ops.em import EmInputs, EmKernelOptions, EmMapping
from torchcaps.routing.problem import Problem
from torchcaps.routing.steps import LEAST_MASS

MDL, MIXING, VB, HEINSEN, MASS = (EmMapping[name] for name in ("MDL", "MIXING", "VB", "HEINSEN", "MASS"))
NOTHING = Sums(None, None, None)


class TritonEm:
    """Its state, of every iteration: mass, height and logit (T, M, J), mean and slope (T, M, J, D), and log-partitions.

    Height and slope are the Gaussian as its E-step reads it, see `torchcaps.gpu.kernels.em_steps`.
    """

    backend = "triton"
    why_not_unasked = staticmethod(why_not_verified)

    def why_not(self, problem: Problem, options: EmKernelOptions) -> str | None:
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
        self.layer = Layer(inputs.votes, worth=inputs.worth)
        given = (inputs.beta_a, inputs.beta_u, inputs.threshold, inputs.initial_logits)
        given = (None if value is None else value.contiguous() for value in given)
        self.beta_a, self.beta_u, self.threshold, self.logits = given
        self.prior = tuple(map(pair, self.options.prior))
        self.num_iterations = len(self.options.sharpness)
        self.kinds, self.shapes = _kinds(inputs), _shapes(inputs)

    def forward(self, outputs: tuple[Tensor, ...], state: Tensor) -> None:
        layer, options = self.layer, self.options
        mass, height, logit, mean, slope, *partitions = split_state(state, self.shapes)
        mass_scale = self._mass_scale()
        for t in range(self.num_iterations):
            form = self._form(mean, slope, height, t)
            partition = layer.partition(form, self.kinds[t], partitions[t])
            sums = layer.moments(form, partition, worth=options.mapping == HEINSEN)
            old = mean[t - 1] if t > 0 and options.damping else None
            self._finish(sums, old, mass_scale, Gaussians(mass[t], height[t], logit[t], mean[t], slope[t]), t)
        out_poses, out_activations, out_logits = outputs
        out_poses.copy_(mean[-1])
        out_logits.copy_(logit[-1])
        of_logits = {MIXING: torch.exp, MASS: torch.clone}.get(EmMapping(options.mapping), torch.sigmoid)
        out_activations.copy_(of_logits(logit[-1]))

    def _finish(self, sums: Sums, old: Tensor | None, mass_scale: Tensor | None, out: Gaussians, t: int) -> None:
        """From the sums of an M-step to its Gaussians."""
        from torchcaps.gpu.kernels.em_steps import finish_m_step
        from torchcaps.gpu.kernels.vb_steps import finish_posterior, weigh

        layer, options = self.layer, self.options
        if options.mapping == VB:
            launch(
                finish_posterior, layer.row_grid, sums, out, layer.num_rows, layer.num_chunks, self.prior,
                **layer.row_options,
            )  # fmt: skip
            launch(
                weigh, layer.row_grid, out.mass, self._total_alpha(out.mass), self.beta_a, self.beta_u,
                out.height.clone(), out.height, out.logit, layer.num_rows, self.prior, **self._row_options(),
            )  # fmt: skip
            return
        launch(
            finish_m_step, layer.row_grid, sums, old, self.beta_a, self.beta_u, self.threshold, mass_scale, out,
            layer.num_rows, layer.num_chunks, self._parents(), *self._numbers(t), ACTIVATION=options.mapping,
            **self._row_options(),
        )  # fmt: skip
        if options.mapping == MIXING:
            total = out.mass.sum((1, 2), keepdim=True)
            out.logit.copy_(out.mass.clamp_min(LEAST_MASS).log() - total.clamp_min(LEAST_MASS).log())
            out.height.add_(options.inverse_temperatures[t] * out.logit)

    def backward(self, state: Tensor, arriving: tuple[Tensor | None, ...], gradients: dict[str, Tensor]) -> None:
        from torchcaps.gpu.layer import as_partition
        from torchcaps.gpu.vote_gradients import VoteGradients

        layer, options, last = self.layer, self.options, self.num_iterations - 1
        mass, height, logit, mean, slope, *partitions = split_state(state, self.shapes)
        mass_scale = self._mass_scale()
        start = last if options.detach else 0
        votes = VoteGradients(layer, gradients, last + 1 - start)
        to_betas = layer.new(2, *mass[start:].shape).zero_()
        to_activations = layer.new(layer.batch_size, layer.num_children).zero_()
        sums, carried = NOTHING, None
        arrived = Arriving(*(None if gradient is None else gradient.contiguous() for gradient in arriving))
        for t in reversed(range(start, last + 1)):
            kept = Gaussians(mass[t], height[t], logit[t], mean[t], slope[t])
            old = mean[t - 1] if t > 0 and options.damping else None
            to_old = torch.empty_like(mean[t]) if options.damping else None
            response = self._respond(sums, arrived, carried, kept, old, mass_scale, to_betas[:, t - start], to_old, t)
            carried = to_old
            form, kind = self._form(mean, slope, height, t), self.kinds[t]
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
        if options.mapping == VB:
            to_betas[1] = -to_betas[0]
        for name, to_beta in zip(("beta_a", "beta_u"), to_betas, strict=True):
            if name in gradients:
                gradients[name].copy_(to_beta.flatten(0, -2).sum(0))
        if "threshold" in gradients:
            gradients["threshold"].copy_(to_betas[0].sum(0))

    def _respond(
        self, sums: Sums, arrived: Arriving, carried: Tensor | None, kept: Gaussians, old: Tensor | None,
        mass_scale: Tensor | None, to_betas: Tensor, to_old: Tensor | None, t: int,
    ) -> Form:  # fmt: skip
        """The form of the gradients of the weights of M-step t, from those of its Gaussians."""
        from torchcaps.gpu.kernels.em_steps import finish_gradient
        from torchcaps.gpu.kernels.vb_steps import finish_posterior_gradient

        layer, options, is_last = self.layer, self.options, t + 1 == self.num_iterations
        price = to_betas[0] if options.mapping == HEINSEN else None
        line, curve, constant = (torch.empty_like(value) for value in (kept.mean, kept.mean, kept.mass))
        out = Form(centre=kept.mean, line=line, slope=curve, height=constant, price=price)
        arrived = arrived if is_last else Arriving(None, None, None)
        if options.mapping == VB:
            to_total = self._sum_sharing(self._to_shares(sums, arrived, kept))
            launch(
                finish_posterior_gradient, layer.row_grid, sums, arrived, self._total_alpha(kept.mass), to_total, kept,
                self.beta_a, self.beta_u, out, to_betas[0], layer.num_rows, layer.num_chunks, self.prior, LAST=is_last,
                **self._row_options(),
            )  # fmt: skip
            return out
        shared = self._shared(kept, sums.mass, arrived.activation, t)
        launch(
            finish_gradient, layer.row_grid, sums, arrived, carried, shared, kept, old, self.beta_u, mass_scale, out,
            *to_betas, to_old, layer.num_rows, layer.num_chunks, self._parents(), *self._numbers(t),
            ACTIVATION=options.mapping, LAST=is_last, **self._row_options(),
        )  # fmt: skip
        return out

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

    def _total_alpha(self, mass: Tensor) -> Tensor:
        """Of those that share the mixing weights of each parent of VB, at least that of one: (B, S, J)."""
        alpha = mass + self.options.prior[0]
        window_mask = self.layer.votes.window_mask
        if window_mask is not None:  # positions that do not exist have no weights
            alpha = torch.where(window_mask.unsqueeze(-1), alpha, torch.zeros_like(alpha))
        return self._sum_sharing(alpha).clamp_min(self.options.prior[0])

    def _sum_sharing(self, values: Tensor) -> Tensor:
        """Over the parents of VB that share mixing weights, for each of them: (B, S, J).

        These are the types of a window, all parents of an example, or the windows of a type.
        """
        axes = {0: 2, 1: (1, 2), 2: 1}[self.options.competition]
        return values.sum(axes, keepdim=True).expand_as(values).contiguous()

    def _to_shares(self, sums: Sums, arrived: Arriving, kept: Gaussians) -> Tensor:
        """Gradients of E ln pi of VB: (B, S, J)."""
        if sums.mass is not None:
            return sums.mass.sum(0).view_as(kept.mass)
        to_logit = torch.zeros_like(kept.logit)
        if arrived.activation is not None:
            to_logit += arrived.activation * kept.logit.sigmoid() * (-kept.logit).sigmoid()
        if arrived.logit is not None:
            to_logit += arrived.logit
        assert self.beta_a is not None
        assert self.beta_u is not None
        return (kept.logit - self.beta_a + self.beta_u) * to_logit

    def _shared(self, kept: Gaussians, sums: Tensor | None, grad_activations: Tensor | None, t: int) -> Tensor | None:
        """What every mass gets from the total that all "mixing" activations share, (B,)."""
        if self.options.mapping != MIXING:
            return None
        if sums is not None:
            to_log = self.options.inverse_temperatures[t] * sums.sum(0).view_as(kept.mass)
        elif grad_activations is not None:
            to_log = kept.logit.exp() * grad_activations
        else:
            to_log = torch.zeros_like(kept.mass)
        total = kept.mass.sum((1, 2))
        return torch.where(
            total >= LEAST_MASS, to_log.sum((1, 2)) / total.clamp_min(LEAST_MASS), torch.zeros_like(total)
        )
