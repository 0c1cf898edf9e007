"""EM routing on the fused CPU kernels.

The votes are never formed: every iteration is one pass that computes each vote, weighs it by the Gaussians of the
iteration before and adds it to the sums of the next. Only the Gaussians of every iteration are kept, and only for a
backward pass, a trace or couplings; the derivation of the backward is in README.md.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.native.lowering import LARGEST_NUMBER, lower, why_not_lower
from torchcaps.routing.competition import KINDS
from torchcaps.routing.em.common import ACTIVATIONS, KAPPA, of_existing
from torchcaps.routing.em.fused_ops import REGISTER_BYTES, EmKernelOptions, em_couplings, em_kernel
from torchcaps.routing.problem import Problem
from torchcaps.routing.result import RoutingResult, TraceStep
from torchcaps.votes import LinearVotes, Votes


class EmKernel:
    """The fused form of EM routing."""

    def why_not(self, problem: Problem) -> str | None:
        if problem.initial_logits is not None:
            return "its kernel starts from uniform couplings, initial_logits were given"
        reason = why_not_lower(problem.votes)
        if reason is None and problem.competition != "window" and _is_factorised_convolution(problem.votes):
            return (
                f"its kernel has no {problem.competition} competition for convolutional votes with factorised weights"
            )
        return reason or _why_not_size(problem)

    def run(self, problem: Problem) -> RoutingResult:
        description = problem.votes
        assert isinstance(description, LinearVotes)
        arguments = (*lower(description), problem.options.beta_a, problem.options.beta_u, *kernel_options(problem))
        differentiated = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments)
        keep_state = differentiated or problem.return_trace
        poses_BSJD, activations_BSJ, logits_BSJ, state = em_kernel(*arguments, keep_state)

        @torch.no_grad()
        def coupling_of(iteration: int) -> tuple[Tensor, Tensor]:
            """Couplings of an M-step, and the log-likelihood of the Gaussians they come from."""
            kept = state if keep_state else em_kernel(*arguments, True)[-1]
            coupling_BSNJ, log_likelihood_B = em_couplings(kept, iteration, *arguments)
            return coupling_BSNJ.view(description.coupling_shape), log_likelihood_B

        positions = (-1, *description.positions)
        capsules = Capsules(
            poses_BSJD.view(*positions, *poses_BSJD.shape[2:]),
            of_existing(activations_BSJ.view(*positions, activations_BSJ.shape[2]), description.window_mask),
        )
        trace = _trace(problem, state.detach(), coupling_of) if problem.return_trace else None
        last = len(problem.options.lambdas) - 1
        logits = None if problem.options.activation == "mixing" else logits_BSJ.view(capsules.activations.shape)
        return RoutingResult(capsules, lambda: coupling_of(last)[0], trace, logits=logits, reads=arguments)


def _is_factorised_convolution(votes: Votes) -> bool:
    """Then every slot is a child of its own to the kernels, and children can no longer compete across windows."""
    return isinstance(votes, LinearVotes) and votes.windows is not None and votes.child_factor is not None


def _why_not_size(problem: Problem) -> str | None:
    """The bounds of `check` in csrc/em_context.h, below which its inner loops count with 32 bits."""
    votes, num_iterations = problem.votes, len(problem.options.lambdas)
    assert isinstance(votes, LinearVotes)
    _, num_parents, inner, outer = votes.weight.shape
    padded_parents = num_parents + REGISTER_BYTES // votes.poses.element_size()
    if max(votes.rows * inner, inner * outer) > LARGEST_NUMBER:
        return f"its kernel counts the entries of a pose and of a transformation with 32 bits, got {inner} x {outer}"
    if padded_parents * votes.vote_size > LARGEST_NUMBER // (4 * num_iterations):
        return (
            "its kernel counts what one parent position needs with 32 bits, which "
            f"{num_parents} parents of {votes.vote_size} entries in {num_iterations} iterations exceed"
        )
    return None


def kernel_options(problem: Problem) -> EmKernelOptions:
    """From the options of the algorithm."""
    options = problem.options
    return EmKernelOptions(
        sharpness=[value * KAPPA[options.cost_scale] for value in options.lambdas],
        inverse_temperature=options.inverse_temperatures,
        eps_var=options.eps_var,
        damping=options.damping,
        competition=KINDS.index("window" if problem.votes.windows is None else problem.competition),
        activation=ACTIVATIONS.index(options.activation),
        scale_by_mass=options.cost_scale == "mass",
        detach=options.detach_couplings,
    )


def _trace(
    problem: Problem, state: Tensor, coupling_of: Callable[[int], tuple[Tensor, Tensor]]
) -> tuple[TraceStep, ...]:
    """Every iteration as it happened, from the Gaussians that were kept."""
    votes, size = problem.votes, problem.votes.vote_size
    # (B, T, S, vectors, 2 D + 2, lanes) -> (B, T, *positions, J, 2 D + 2)
    records = state.movedim(-1, -2).flatten(3, 4)[..., : votes.num_parents, :]
    records = records.reshape(*records.shape[:2], *votes.positions, *records.shape[3:])
    means, logits = records[..., :size], records[..., 2 * size]
    activations = logits.exp() if problem.options.activation == "mixing" else logits.sigmoid()
    num_iterations = len(problem.options.lambdas)
    couplings, log_likelihoods = zip(*(coupling_of(iteration) for iteration in range(num_iterations + 1)), strict=True)
    return tuple(
        TraceStep(
            couplings[iteration],
            means[:, iteration],
            of_existing(activations[:, iteration], votes.window_mask),
            -log_likelihoods[iteration + 1],  # of the Gaussians this iteration found
        )
        for iteration in range(num_iterations)
    )


FUSED = EmKernel()
